"""Settings that algorithms share: of every one, of policies, critics and local critics."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from icql.errors import UserError
from icql.settings.contexts import ContextSettings, DataSettings
from icql.settings.draw import DrawSettings
from icql.settings.fields import BelowOne, Count, NonNegative, Positive, Settings, Widths

CriticKind = Literal["local", "global"]
ModuleName = Literal["linear", "mlp", "softmax", "ridge"]
Initial = Literal["zero", "learned"]
CStart = Literal["identity", "xavier"]
Normalise = Literal["none", "unit", "layer"]
Init = Literal["orthogonal", "small", "iql", "torch", "rebrac", "cql", "xavier"]
GLOBAL = dict.fromkeys(("local.", "context."), "the critic is global (--critic local)")
SEQUENCES = {"data.corrective": "steps of a sequence stay as they were logged"}
LOCAL = {"init": "a local critic starts orthogonal"}
OF_MODULE: dict[str, ModuleName] = {  # settings of one module, which the others do not read
    "local.layers": "linear",
    "local.c_scale": "linear",
    "local.c_learning_rate": "linear",
    "local.form": "linear",
    "local.blocks": "softmax",
    "local.ridge": "ridge",
}
Form = Literal["auto", "reduced", "dual", "fused"]


@dataclass(frozen=True)
class AlgorithmSettings(Settings):
    """What every algorithm's settings have in common."""

    batch_size: Count = 256
    """Transitions per gradient step."""
    data: DataSettings = field(default_factory=DataSettings)
    draw: DrawSettings = field(default_factory=DrawSettings)

    @property
    def unused(self) -> dict[str, str]:
        """Settings, or sections, that nothing reads as the others stand, and why."""
        names = (f.name for f in dataclasses.fields(self.draw) if f.name != "by")
        alike = self.draw.by == "uniform"
        return {f"draw.{name}": "draw.by is uniform" for name in names} if alike else {}

    @property
    def policy_rows(self) -> bool:
        """Whether the policy learns from rows of its own, drawn by weight."""
        return self.draw.by != "uniform" and self.draw.rows == "policy"

    @property
    def scheduled_by(self) -> str | None:
        """The setting that ties updates to the number of steps that is planned, if one does."""
        return None


@dataclass(frozen=True)
class PolicySettings(Settings):
    """A policy's network and how it is trained: one definition for every method that has one."""

    section: ClassVar[str] = "policy."

    hidden: Widths = (256, 256)
    """Hidden layers."""
    networks: Count = 1
    """Networks whose mean is the policy. Each learns from a share of every batch of its own, so
    that more cost little time on a GPU (eight on two CPU cores: twice as long). Their errors
    cancel, which helps where demonstrations are few. The batch has to be a multiple."""
    init: Init = "orthogonal"
    """How fresh weights are drawn: orthogonal; small: the same with a last layer near 0, for
    few demonstrations; or as in the code of iql, PyTorch (torch), rebrac, cql, or FQL and QC
    (xavier). The schemes are listed in nn/initialisation.py."""
    layer_norm: bool = False
    """LayerNorm after every hidden layer: where data is little, the largest single gain."""
    dropout: BelowOne = 0.0
    """Dropout during training."""
    noise: NonNegative = 0.0
    """Noise on the states during training: 1 is as much as the simulator adds to what it shows,
    where the task knows that (Kitchen); elsewhere it does nothing."""
    relative_noise: NonNegative = 0.0
    """Noise on the states during training, as a share of each column's spread, where the task does
    not know its simulator's."""
    learning_rate: Positive = 3e-4
    """Adam's learning rate."""
    cosine: bool = False
    """Let the learning rate fall to zero over the run by a cosine."""
    weight_decay: NonNegative = 0.0
    """AdamW's weight decay of matrices."""


@dataclass(frozen=True)
class ActorSettings(AlgorithmSettings):
    """What every algorithm with a :class:`PolicySettings` policy has in common."""

    policy: PolicySettings = field(default_factory=PolicySettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size % self.policy.networks:
            raise UserError(
                f"must divide the batch of {self.batch_size}, of which every network has a share.",
                where="policy.networks",
            )

    @property
    def scheduled_by(self) -> str | None:
        """A cosine ends with the planned steps."""
        return "policy.cosine" if self.policy.cosine else super().scheduled_by


@dataclass(frozen=True)
class LocalSettings(Settings):
    """The local (in-context) critic: features φ and the in-context module over them."""

    section: ClassVar[str] = "local."

    module: ModuleName = "linear"
    """linear: the paper's linear Transformer; mlp and softmax: its ablation; ridge: the context's
    targets regressed in closed form (not the paper's), which helps where TD inside the context runs
    away. Best with normalise = unit and context.exclude = episode."""
    layers: Count = 20
    """L, the number of in-context TD steps of the linear module."""
    blocks: Count = 4
    """Attention blocks of the softmax module."""
    features: Count = 64
    """d, the dimension of φ(s, a)."""
    normalise: Normalise = "none"
    """φ as the network gives it; unit: divided by its length; layer: to mean 0 and variance 1. unit
    helps where critics run away: ‖ΦᵀΦ/N‖ ≤ 1, so that C may start larger (c_scale up to d)."""
    kernel: NonNegative = 0.0
    """Weigh the context's rows by exp(−kernel · d² / mean d²) of their distance to the query, among
    the states as networks see them; 0: all alike, as the paper. Of linear and ridge; it may help
    where some of a context are much farther than others."""
    initial: Initial = "zero"
    """w_0 of linear: zero, the paper's, or learned, a prior that the context corrects. It helps
    where whole contexts hold no reward (Kitchen): from zero Q̂ is 0 there whatever φ and C are."""
    ridge: Positive = 0.1
    """λ of ridge before the first update, meant for features of unit length; it is learned."""
    c_scale: NonNegative = 1.0
    """C_ℓ starts as (c_scale / d)·I. 1 is stable; d is the identity and explodes."""
    c_start: CStart = "identity"
    """xavier: C_ℓ starts as a normal Xavier matrix of gain c_scale · 0.1 / L, as InContextTD's do.
    It may help where C = I/d is too large a start; c_scale = 0.1 d / L is (0.1 / L)·I."""
    spectral_bound: NonNegative = 0.0
    """Largest spectral norm of C_ℓ (0: any): C_ℓ is scaled down until √(|C_ℓ|₁ |C_ℓ|_∞), never less
    than the norm, is this. It helps where a C that learns upward explodes."""
    c_learning_rate: NonNegative = 1.0
    """Learning rate of C as a multiple of the critic's: C has to be learned upward."""
    dropout: BelowOne = 0.1
    """Dropout in φ during training."""
    context_dropout: bool = True
    """Whether dropout also acts on the features of the context transitions."""
    form: Form = "auto"
    """How the linear module computes its TD steps: reduced, dual, or fused in one GPU kernel; equal
    up to rounding. auto: fused on a GPU, reduced elsewhere."""

    @property
    def unused(self) -> dict[str, str]:
        """Settings of the modules that were not chosen."""
        others = (name for name, module in OF_MODULE.items() if module != self.module)
        return dict.fromkeys(others, f"local.module is {self.module}")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel and self.module in ("mlp", "softmax"):
            raise UserError(
                f"belongs to linear and ridge, which add up over rows; {self.module} does not.",
                where=self.section + "kernel",
                fix="Leave it out, or take another local.module.",
            )
        of_linear = {
            "initial": self.initial != "zero" and self.module != "ridge",  # whose w_0 is learned
            "c_start": self.c_start != "identity",
            "spectral_bound": self.spectral_bound != 0,
        }
        for name, asked in of_linear.items():
            if asked and self.module != "linear":
                raise UserError(
                    f"belongs to the TD layers of the linear module; {self.module} has none.",
                    where=self.section + name,
                    fix="Leave it out, or take local.module = linear.",
                )


def of_other_critics(critic: CriticKind, local: LocalSettings) -> dict[str, str]:
    """Settings that this kind of critic does not read, and why."""
    return LOCAL | local.unused if critic == "local" else GLOBAL


@dataclass(frozen=True)
class CriticSettings(ActorSettings):
    """The settings of critic-based methods; `critic = local` makes the ICQL variant."""

    critic: CriticKind = "global"
    """global: one network for all states; local: inferred from retrieved context (ICQL)."""
    critics: Count = 2
    """Number of Q critics; their minimum is used (1: single). More hold values down where data is
    little (docs/experiments.md, E20), and cost time."""
    discount: BelowOne = 0.99
    """γ, for the Bellman target and for TD inside the context."""
    target_rate: Positive = 0.005
    """Step of the target networks' moving average."""
    critic_learning_rate: Positive = 3e-4
    """Adam's learning rate for the critics."""
    critic_cosine: bool = False
    """Let it fall to zero over the run by a cosine: a rate that is too large to end with may be
    right to begin with (docs/experiments.md, E19)."""
    bound_values: bool = False
    """Keep the next state's value, before a target is made of it, within what rewards like the
    data's can add up to: no policy has more than max r / (1 − γ). A brake for critics that run
    away; in none of the papers."""
    gradient_clip: NonNegative = 0.0
    """Largest gradient norm of the critics (0: no clipping; the ICQL paper: 10)."""
    hidden: Widths = (256, 256)
    """Hidden layers of the critics."""
    init: Init = "orthogonal"
    """How fresh weights of global critics are drawn (see policy.init); local ones: orthogonal."""
    context: ContextSettings = field(default_factory=ContextSettings)
    local: LocalSettings = field(default_factory=LocalSettings)

    @property
    def critic_steps(self) -> int:
        """Steps of the critics in one update."""
        return 1

    @property
    def scheduled_by(self) -> str | None:
        """A cosine ends with the planned steps."""
        return "critic_cosine" if self.critic_cosine else super().scheduled_by

    @property
    def unused(self) -> dict[str, str]:
        """A global critic retrieves nothing; a local one starts in a way of its own."""
        return super().unused | of_other_critics(self.critic, self.local)


@dataclass(frozen=True)
class DelayedSettings(CriticSettings):
    """TD3's settings. One update is `policy_delay` critic steps, then one step of the policy.

    Each critic step has a batch of its own; the policy learns from the last one. A run of 500,000
    updates at a delay of 2 therefore makes the papers' 1,000,000 critic steps.
    """

    policy_delay: Count = 2
    """Critic steps per update; the policy and all targets make one step per update."""
    policy_noise: NonNegative = 0.2
    """Spread of the noise on the target policy's actions."""
    noise_limit: NonNegative = 0.5
    """Largest noise on the target policy's actions."""

    @property
    def critic_steps(self) -> int:
        """Those before the policy's."""
        return self.policy_delay
