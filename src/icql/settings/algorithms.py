"""The settings of every algorithm, with the defaults of its official code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from icql.errors import UserError
from icql.settings.contexts import ContextSettings, DataSettings
from icql.settings.draw import DrawSettings
from icql.settings.fields import (
    AboveZero,
    AtLeastOne,
    BelowOne,
    Between,
    Count,
    NonNegative,
    Positive,
    Share,
    Whole,
    Widths,
)
from icql.settings.shared import (
    SEQUENCES,
    ActorSettings,
    AlgorithmSettings,
    CriticKind,
    CriticSettings,
    DelayedSettings,
    Init,
    LocalSettings,
    PolicySettings,
    of_other_critics,
)

TD3BCForm = Literal["original", "retuned", "paper"]
QUnit = Literal["size", "spread", "noise"]
Aggregate = Literal["mean", "min"]


@dataclass(frozen=True)
class AutoSettings(ActorSettings):
    """What can be set whichever algorithm is chosen; what is not given is that algorithm's own."""


@dataclass(frozen=True)
class BCSettings(ActorSettings):
    """Behaviour cloning's settings; the defaults are CORL's."""

    policy: PolicySettings = field(default_factory=lambda: PolicySettings(init="torch"))


@dataclass(frozen=True)
class GraphSettings(ActorSettings):
    """Settings of the critic solved on the retrieval graph, and of the policy drawn from it."""

    draw: DrawSettings = field(
        default_factory=lambda: DrawSettings(
            by="advantage", beta=1.5, trace=0.95, ends=False, least=2000
        )
    )
    policy: PolicySettings = field(
        default_factory=lambda: PolicySettings(layer_norm=True, cosine=True)
    )


@dataclass(frozen=True)
class IQLSettings(CriticSettings):
    """IQL's settings; the defaults are the official MuJoCo ones."""

    value: Literal["policy", "expectile"] = "expectile"
    """V as E_{a~π} Q̂ (reading A, the paper's formula) or as its own estimator (reading B, IQL)."""
    expectile: Between = 0.7
    """τ: 0.5 is the mean; towards 1 the best actions in the data count."""
    expectile_sign: Literal["y-q", "q-y"] = "y-q"
    """Reading A: ρ_τ(y − Q̂), or ρ_τ(Q̂ − y) as the paper prints it. That is ρ of 1 − τ: for τ > 0.5
    it punishes overestimation, which may help where critics run away."""
    beta: NonNegative = 3.0
    """β, the inverse temperature of advantage-weighted regression, on scaled rewards."""
    advantage_limit: AtLeastOne = 100.0
    """Upper limit of the regression weights exp(β A)."""
    policy_samples: Count = 1
    """Reading A: actions drawn per state to estimate E_{a~π}."""
    init: Init = "iql"
    """How fresh weights of global critics are drawn (see policy.init); local ones: orthogonal."""
    policy: PolicySettings = field(default_factory=lambda: PolicySettings(cosine=True))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expectile_sign == "q-y" and self.value == "expectile":
            raise UserError(
                "reading B has no expectile of y − Q̂ whose sign could be turned.",
                where="expectile_sign",
                fix="Take reading A (value = policy), or leave it out.",
            )


@dataclass(frozen=True)
class TD3BCSettings(DelayedSettings):
    """TD3+BC's settings; the defaults are the official ones."""

    form: TD3BCForm = "original"
    """original: alpha scales normalised Q; retuned: bc_coef scales cloning beside normalised Q;
    paper: alpha scales cloning beside raw Q, and a local critic values s' by the context of s (the
    ICQL paper's formulas as printed)."""
    alpha: NonNegative = 2.5
    """α of the forms original (more is less cloning) and paper (more is more cloning)."""
    bc_coef: NonNegative = 0.1
    """β, the weight of cloning in the form retuned."""
    init: Init = "torch"
    """How fresh weights of global critics are drawn (see policy.init); local ones: orthogonal."""
    policy: PolicySettings = field(default_factory=lambda: PolicySettings(init="torch"))


@dataclass(frozen=True)
class ReBRACSettings(DelayedSettings):
    """ReBRAC's settings; the defaults are the official ones. Presets have both weights per task."""

    actor_bc: NonNegative = 1.0
    """β₁, the weight of cloning in the actor."""
    critic_bc: NonNegative = 1.0
    """β₂, the penalty on the target policy's distance from the data's next action."""
    normalise_q: bool = True
    """Divide Q by its `q_unit` in the actor's loss."""
    q_unit: QUnit = "size"
    """size: E|Q|, which grows with whatever is added to all rewards; spread: Q's standard
    deviation, which does not, so that one weight of cloning suits more tasks; noise: that of what
    deviations like the log's change of Q, and cloning counts in such deviations too, so that a log
    of small corrections is not left further than one of large ones."""
    layer_norm: bool = True
    """LayerNorm in the critics (a local critic's features always have it)."""
    hidden: Widths = (256, 256, 256)
    """Hidden layers of the critics."""
    batch_size: Count = 1024
    """Transitions per gradient step."""
    critic_learning_rate: Positive = 1e-3
    """Adam's learning rate for the critics."""
    init: Init = "rebrac"
    """How fresh weights of global critics are drawn (see policy.init); local ones: orthogonal."""
    policy: PolicySettings = field(
        default_factory=lambda: PolicySettings(
            hidden=(256, 256, 256), learning_rate=1e-3, init="rebrac"
        )
    )

    @property
    def unused(self) -> dict[str, str]:
        """What Q is divided by is read where it is divided."""
        return super().unused | ({} if self.normalise_q else {"q_unit": "normalise_q is off"})


@dataclass(frozen=True)
class RankSettings(ReBRACSettings):
    """Settings of ReBRAC whose policy learns from what fared well among similar states."""

    critics: Count = 10
    """Number of Q critics; their minimum is used (1: single)."""
    actor_bc: NonNegative = 0.02
    """β₁, the weight of cloning in the actor."""
    critic_bc: NonNegative = 0.0
    """β₂, the penalty on the target policy's distance from the data's next action."""
    batch_size: Count = 256
    """Transitions per gradient step."""
    critic_learning_rate: Positive = 1e-3
    """Adam's learning rate for the critics."""
    critic_cosine: bool = True
    """Let it fall to zero over the run by a cosine."""
    init: Init = "orthogonal"
    """How fresh weights of global critics are drawn (see policy.init); local ones: orthogonal."""
    data: DataSettings = field(default_factory=lambda: DataSettings(normalise_states=True))
    draw: DrawSettings = field(
        default_factory=lambda: DrawSettings(by="rank", rows="policy", trace=1.0)
    )
    q_unit: QUnit = "spread"
    """What Q is divided by in the actor's loss: its size, its spread, or what noise changes."""
    policy: PolicySettings = field(
        default_factory=lambda: PolicySettings(layer_norm=True, cosine=True)
    )


@dataclass(frozen=True)
class CQLSettings(CriticSettings):
    """CQL's settings; the defaults are CORL's for MuJoCo."""

    alpha: NonNegative = 10.0
    """α, the weight of the conservative term."""
    samples: Count = 10
    """Actions drawn from each of the three proposals to estimate log Σ exp Q."""
    importance_sampling: bool = True
    """Divide each sample by the density it was drawn with; without, the logged action is one more
    sample (published Kitchen settings)."""
    max_backup: bool = False
    """Bootstrap from the best of `samples` actions at s' rather than from one."""
    cloning_steps: Whole = 0
    """Updates in which the policy clones first, as the authors' code does for 40,000 (CORL: 0)."""
    log_std_offset: float = -1.0
    """What log σ of the policy is shifted by at the start; it is learned, as is its multiplier."""
    log_std_multiplier: float = 1.0
    """What log σ of the policy is multiplied by at the start."""
    cql_temperature: Positive = 1.0
    """Temperature of the log-sum-exp."""
    lagrange: bool = False
    """Tune the weight by dual descent so that the conservative gap stays at `target_gap`."""
    target_gap: float = 5.0
    """The conservative gap that the Lagrange form aims at."""
    backup_entropy: bool = False
    """Whether the Bellman target includes the policy's entropy, as in SAC."""
    hidden: Widths = (256, 256, 256)
    """Hidden layers of the critics."""
    init: Init = "cql"
    """How fresh weights of global critics are drawn (see policy.init); local ones: orthogonal."""
    policy: PolicySettings = field(
        default_factory=lambda: PolicySettings(
            hidden=(256, 256, 256), learning_rate=3e-5, init="cql"
        )
    )


@dataclass(frozen=True)
class DMGSettings(DelayedSettings):
    """DMG's settings; the defaults are those of the official MuJoCo command."""

    mixture: Share = 0.25
    """λ, how much of the bootstrap is the policy's own value rather than the in-sample V."""
    penalty: NonNegative = 0.1
    """ν, the weight of advantage-weighted cloning in the actor."""
    expectile: Between = 0.7
    """τ of the in-sample value V."""
    beta: NonNegative = 3.0
    """β, the inverse temperature of the cloning weights, on scaled rewards."""
    advantage_limit: AtLeastOne = 3.0
    """Upper limit of the cloning weights exp(β A)."""
    init: Init = "torch"
    """How fresh weights of global critics are drawn (see policy.init); local ones: orthogonal."""
    policy: PolicySettings = field(
        default_factory=lambda: PolicySettings(cosine=True, init="torch")
    )


@dataclass(frozen=True)
class SACSettings(AlgorithmSettings):
    """Settings of SAC; the defaults are the paper's (table 1)."""

    hidden: Widths = (256, 256)
    """Hidden layers of the critics and of the policy."""
    learning_rate: Positive = 3e-4
    """Adam's learning rate for critics, policy and temperature."""
    discount: Share = 0.99
    """γ."""
    target_rate: Share = 0.005
    """τ, how far the target critics move towards the critics at each update."""
    initial_temperature: Positive = 1.0
    """α before the first update."""
    target_entropy_per_action: float = -1.0
    """H̄ divided by the number of action dimensions."""


@dataclass(frozen=True)
class FlowSettings(ActorSettings):
    """What FQL and QC share; the defaults are the official ones."""

    alpha: NonNegative = 10.0
    """α, the weight of distillation against −Q: the one setting to tune per task."""
    q_aggregate: Aggregate = "mean"
    """How critics are taken together: mean, or min (FQL on Adroit)."""
    flow_steps: Count = 10
    """Euler steps from noise to action (or chunk)."""
    critics: Count = 2
    """Number of Q critics."""
    discount: BelowOne = 0.99
    """γ per step."""
    target_rate: Positive = 0.005
    """Step of the target network's moving average."""
    critic_learning_rate: Positive = 3e-4
    """Adam's learning rate for the critics."""
    hidden: Widths = (512, 512, 512, 512)
    """Hidden layers of the critics (GELU and layer norm)."""
    init: Init = "xavier"
    """How fresh weights of global critics are drawn (see policy.init); local ones: orthogonal."""
    policy: PolicySettings = field(
        default_factory=lambda: PolicySettings(hidden=(512, 512, 512, 512), init="xavier")
    )


@dataclass(frozen=True)
class FQLSettings(FlowSettings):
    """FQL's settings; the defaults are the official ones."""

    critic: CriticKind = "global"
    """global: one network for all states (FQL); local: inferred from retrieved context."""
    normalise_q: bool = False
    """Divide the policy's Q by its mean size (official normalize_q_loss; advised for new tasks)."""
    context: ContextSettings = field(default_factory=ContextSettings)
    local: LocalSettings = field(default_factory=LocalSettings)

    @property
    def unused(self) -> dict[str, str]:
        """A global critic retrieves nothing; a local one starts in a way of its own."""
        return super().unused | of_other_critics(self.critic, self.local)


@dataclass(frozen=True)
class QCSettings(FlowSettings):
    """QC's settings; the defaults are the official ones. `alpha` is of the distilled actor."""

    actor: Literal["best-of-n", "distilled"] = "best-of-n"
    """best-of-n: QC, the best of `samples` chunks; distilled: QC-FQL, one pass from noise."""
    alpha: NonNegative = 100.0
    """α, the weight of distillation against −Q (QC-FQL only)."""
    chunk: Count = 5
    """h, the actions of a chunk."""
    critic: CriticKind = "global"
    """global alone: contexts are single transitions, and the critic judges chunks."""
    samples: Count = 32
    """n: the best-of-n policy takes the best of this many chunks."""

    @property
    def unused(self) -> dict[str, str]:
        """A chunk is a sequence."""
        return super().unused | SEQUENCES

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critic == "local":
            raise UserError(
                "QC has no local critic: it judges chunks of actions, the retrieved contexts are "
                "single transitions, and best-of-n would have to retrieve while it acts.",
                where="critic",
                fix="Take FQL's (--algo fql --critic local), or --critic global.",
            )


@dataclass(frozen=True)
class DTSettings(AlgorithmSettings):
    """DT's settings; the defaults are the official ones of the gym tasks."""

    target_return: float = 3600.0
    """The return that is asked for, in the environment's rewards: give it for a task of your own,
    near the best return in the data."""
    return_scale: Positive = 1000.0
    """Returns-to-go are divided by this before the network sees them."""
    running_rewards: bool = False
    """The data's reward is what the episode has earned so far, where the environment pays it only
    once (Kitchen): returns-to-go then fall by the running total."""
    length: Count = 20
    """K, the steps of a window."""
    layers: Count = 3
    """Transformer blocks."""
    heads: Count = 1
    """Attention heads; they share the width."""
    width: Count = 128
    """Size of a token."""
    timesteps: Count = 1000
    """Timesteps with an embedding of their own; later ones share the last."""
    dropout: BelowOne = 0.1
    """Dropout of embeddings, attention and residuals during training."""
    batch_size: Count = 64
    """Windows per update."""
    learning_rate: Positive = 1e-4
    """AdamW's learning rate after the warm-up."""
    warmup: Count = 10_000
    """Updates over which the learning rate rises linearly."""
    cosine: bool = False
    """Let the learning rate fall to zero by a cosine after the warm-up."""
    weight_decay: NonNegative = 1e-4
    """AdamW's weight decay."""
    gradient_clip: Positive = 0.25
    """Largest gradient norm."""

    @property
    def scheduled_by(self) -> str | None:
        """A cosine ends with the planned steps."""
        return "cosine" if self.cosine else super().scheduled_by

    @property
    def unused(self) -> dict[str, str]:
        """Windows are sequences."""
        return super().unused | SEQUENCES

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise UserError(f"must be a multiple of heads ({self.heads}).", where="width")
        if (self.data.reward_scale, self.data.reward_shift) != (1, 0) or (
            self.data.normalise_returns
        ):
            raise UserError(
                "rewards must keep their size: the policy counts what the environment pays.",
                where="data.reward_scale",
                fix="Scale returns-to-go with return_scale instead.",
            )


@dataclass(frozen=True)
class RADTSettings(DTSettings):
    """DT's settings and those of retrieval."""

    memory_size: Count = 512
    """Sub-trajectories in the memory."""
    refresh: Count = 8
    """Sub-trajectories of each batch that replace the oldest ones in the memory."""
    candidates: Count = 50
    """The most similar sub-trajectories, of which the one with the highest return-to-go is used."""
    pretrain: AboveZero = 0.3
    """Share of the updates in which the embedding DT learns; then it is frozen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates > self.memory_size:
            raise UserError(
                f"must not exceed memory_size ({self.memory_size}).", where="candidates"
            )
        if self.refresh > min(self.memory_size, self.batch_size):
            raise UserError("must not exceed memory_size or batch_size.", where="refresh")

    @property
    def scheduled_by(self) -> str | None:
        """Pretraining takes its share of the planned steps."""
        return "pretrain" if self.pretrain < 1 else super().scheduled_by
