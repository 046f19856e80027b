"""Is a policy better than the log, or than another, where there is no simulator to ask?"""
