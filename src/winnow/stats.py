"""What a run cost: counted (rows, units, bytes) and timed (seconds)."""

from dataclasses import asdict, dataclass, fields, replace


@dataclass
class Stats:
    """The cost of one completion. Counts are exact; times are wall clock.

    A row is one token entering one layer in one step, of a prompt that is read twice (`kvzip`) each time; a unit is the
    key and value of one token in one layer and one KV head. Rows and units_full equal closed formulas, and so do
    units_read and bytes where a plan says beforehand how much it reads and holds.

    units_read is what the attention of decode steps reads, and the bounds that `quest` compares. The vectors of blocks
    that `infllm` compares are not in it, nor are keys that are read once more to rank prompt tokens (`lazyllm`,
    `static_prune`, `fastkv`), to vote on units (`h2o`, `snapkv`, `scissorhands`, `tova`, `lococo`) or score them
    (`keydiff`, `lagkv`, `expected_attention`), or to select them after a prompt or beside revived tokens (`slowfast`,
    `tidal`), nor is anything that prefill reads.

    Memory is total_bytes. No figure in bytes counts the index of positions that every layer has under any plan (8 bytes
    a token), working memory of a step, or weights. Each of several samples of one prompt counts the prefill and
    the units that they share.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0  # of these, not computed: a sequence that had been retained begins with them
    cached_rows: int = 0  # rows that these took where they were computed; at most, where more was there and is cut off
    new_tokens: int = 0
    queue_s: float = 0.0  # from the arrival of the request to its beginning
    ttft_s: float = 0.0  # from the arrival of the request to its first new token
    total_s: float = 0.0  # from the arrival of the request to its last new token
    rows_computed: int = 0  # prefill and decode, summed over layers
    rows_full: int = 0  # the same under full attention
    units_read: int = 0  # by decode steps, summed over layers and KV heads
    units_full: int = 0  # the same under full attention
    cache_bytes: int = 0  # units held at the end, and nothing else
    peak_cache_bytes: int = 0  # the most units each layer ever held, in the middle of a step included, summed
    allocated_bytes: int = 0  # memory, or files, reserved for units at the end, held or not
    aux_bytes: int = 0  # the most at once of what policies hold beside units: scores, copies, parked states
    total_bytes: int = 0  # the most at once of units and all that policies hold beside them
    held_bytes: int = 0  # cache_bytes, and all that policies hold beside these units at the end
    disk_bytes: int = 0  # the most at once of files reserved for units; 0 where they are in memory
    slow_steps: int = 0  # decode steps that are slow for the read policy; if it has none, that read every kept unit
    fast_steps: int = 0  # all others
    revived_rows: int = 0  # rows computed late, for tokens skipped before
    pairs_read: int = 0  # of a query and a key, by rows of a prompt where a plan chooses what these read
    pairs_full: int = 0  # the same where they read everything

    @property
    def tpot_s(self) -> float:
        """Seconds per output token after the first; 0 for a single token."""
        return (self.total_s - self.ttft_s) / (self.new_tokens - 1) if self.new_tokens > 1 else 0.0

    def since(self, earlier: "Stats") -> "Stats":
        """What has been computed, read and timed since `earlier`; the bytes are those of now."""
        counted = [each.name for each in fields(self) if not each.name.endswith("bytes")]
        return replace(self, **{name: getattr(self, name) - getattr(earlier, name) for name in counted})

    def to_dict(self) -> dict[str, int | float]:
        """Every figure by name, `tpot_s` included."""
        return {**asdict(self), "tpot_s": self.tpot_s}
