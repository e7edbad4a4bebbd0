"""The loop: draft, verify, commit; block after block (paper, section 4; design.md §3).

Every method runs here, under one verifier. A pass scores the block as it stands and the drafts in one forward; the
walk applies the step rule to the accepted state's own logits and moves on while the result is among the drafts.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spot.commit import choose, commit_least_surprising
from spot.drafters.protocol import Context, Drafter, StaleTable
from spot.noise import Noise
from spot.targets.protocol import Target
from spot.tree import State, commit


@dataclass(frozen=True)
class Settings:
    """`stop`: "eos" ends after the block in which a stop id was committed, "length" never."""

    gen_length: int
    temperature: float = 0.0
    stop: str = "eos"


@dataclass(frozen=True)
class Pass:
    """One verification pass: how many distinct drafts it carried, how many the walk moved into."""

    drafted: int
    accepted: int


@dataclass(frozen=True)
class Decoding:
    """A decoded text. `tokens` are cut at gen_length and before the first stop id; `length` counts that id too.

    `commits` are (absolute position, token) in the order committed, over every decoded block. NFE is `len(passes)`;
    `cache_passes` (the prefill) are counted apart. `seconds` has prefill, target, draft and rest.
    """

    tokens: list[int]
    length: int
    commits: list[tuple[int, int]]
    passes: list[Pass]
    cache_passes: int
    seconds: dict[str, float]

    @property
    def nfe(self) -> int:
        return len(self.passes)


@dataclass(frozen=True)
class Visit:
    """A state the walk passed through: its block's start, the steps taken in the block, and its logits [B, V]."""

    start: int
    step: int
    state: State
    logits: Tensor


Watch = Callable[[Visit], None]


@dataclass
class Stopwatch:
    """Adds the time since the last lap to a phase."""

    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("prefill", "target", "draft", "rest"), 0.0)
    )
    last: float = field(default_factory=time.perf_counter)

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] += now - self.last
        self.last = now


def decode(
    target: Target,
    prompt: list[int],
    settings: Settings,
    noise: Noise,
    drafter: Drafter | None = None,
    budget: int = 0,
    watch: Watch | None = None,
) -> Decoding:
    """Decode `prompt` (token ids) with `target`; draft-free without a drafter or with budget 0."""
    config, size = target.config, target.config.block_length
    run = _Run(target, settings, noise, drafter if budget else None, budget, watch)
    cache_passes = target.prefill(prompt)
    run.clock.lap("prefill")
    end = -(-(len(prompt) + settings.gen_length) // size) * size
    text = list(prompt)
    for start in range(len(prompt) // size * size, end, size):
        block = tuple(text[start:]) + (config.mask_id,) * (size - len(text[start:]))
        text[start:] = run.fill(block, start)
        target.advance(torch.tensor(text[start:], device=target.device))
        if settings.stop == "eos" and config.stop_ids.intersection(text[max(start, len(prompt)) :]):
            break
    generated = text[len(prompt) :][: settings.gen_length]
    tokens = cut_at_stop(generated, config.stop_ids)
    length = min(len(tokens) + 1, len(generated))
    run.clock.lap("rest")
    return Decoding(tokens, length, run.commits, run.passes, cache_passes, run.clock.seconds)


def cut_at_stop(tokens: list[int], stop_ids: frozenset[int]) -> list[int]:
    """The tokens before the first stop id."""
    return next((tokens[:i] for i, token in enumerate(tokens) if token in stop_ids), tokens)


@dataclass
class _Run:
    """One decoding under way: what it was asked, and what it has done so far."""

    target: Target
    settings: Settings
    noise: Noise
    drafter: Drafter | None
    budget: int
    watch: Watch | None
    clock: Stopwatch = field(default_factory=Stopwatch)
    commits: list[tuple[int, int]] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)

    def fill(self, state: State, start: int) -> State:
        """Fill the block at `start`. Its first pass has no stale table yet and carries no drafts."""
        mask_id, first = self.target.config.mask_id, len(self.commits)
        table: StaleTable | None = None
        while mask_id in state:
            step = len(self.commits) - first
            self.clock.lap("rest")
            nodes = [state, *self._drafts(table, state, start, step)]
            self.clock.lap("draft")
            tokens = torch.tensor(nodes, device=self.target.device)
            logits = self.target(tokens)
            positions, chosen = next_commits(
                logits, tokens, start, step, mask_id, self.settings.temperature, self.noise
            )
            self.clock.lap("target")
            path, state = walk(nodes, positions, chosen)
            self.commits += [(start + positions[node], chosen[node]) for node in path]
            self.passes.append(Pass(len(nodes) - 1, len(path) - 1))
            if self.watch:
                for ahead, node in enumerate(path):
                    self.watch(Visit(start, step + ahead, nodes[node], logits[node]))
            if self.drafter:
                table = StaleTable.read(logits[path[-1]], tokens[path[-1]] == mask_id, mask_id)
        return state

    def _drafts(self, table: StaleTable | None, state: State, start: int, step: int) -> list[State]:
        if self.drafter is None or table is None:
            return []
        mask_id = self.target.config.mask_id
        context = Context(table, state, start, step, mask_id, self.settings.temperature, self.noise)
        return usable(self.drafter.draft(context, self.budget), state, mask_id)[: self.budget]


def usable(drafts: list[State], root: State, mask_id: int) -> list[State]:
    """The distinct drafts that a pass can score: not the root again, and not full: no step follows one."""
    return [draft for draft in dict.fromkeys(drafts) if draft != root and mask_id in draft]


def next_commits(
    logits: Tensor, nodes: Tensor, start: int, step: int, mask_id: int, temperature: float, noise: Noise
) -> tuple[list[int], list[int]]:
    """Every node's next commit under the step rule: position in the block, and token.

    logits [N, B, V]; nodes [N, B], the root first. Only the root's masked positions are looked at, and noise is
    computed once for each (step, masked position), shared by all nodes of that step.
    """
    where = (nodes[0] == mask_id).nonzero().squeeze(-1)
    masked = nodes[:, where] == mask_id
    gumbel = None
    if temperature > 0:
        steps, node_step = (step + len(where) - masked.sum(-1)).unique(return_inverse=True)
        vocabulary = torch.arange(logits.shape[-1], device=logits.device)
        gumbel = noise.gumbel((start + where)[None, :, None], steps[:, None, None], vocabulary)[node_step]
    token, surprise = choose(logits[:, where], mask_id, temperature, gumbel)
    best = commit_least_surprising(masked, surprise)
    positions, chosen = torch.stack([where[best], token.gather(1, best[:, None]).squeeze(1)]).tolist()
    return positions, chosen


def step_rule(target: Target, visit: Visit, temperature: float, noise: Noise) -> tuple[int, int]:
    """The commit that follows from a visit's own logits alone: absolute position and token."""
    node = torch.tensor([visit.state], device=visit.logits.device)
    mask_id = target.config.mask_id
    positions, tokens = next_commits(visit.logits[None], node, visit.start, visit.step, mask_id, temperature, noise)
    return visit.start + positions[0], tokens[0]


def walk(nodes: list[State], positions: list[int], tokens: list[int]) -> tuple[list[int], State]:
    """The nodes passed through, from the root, and the state after the last one's commit, which is not among them."""
    index = {state: i for i, state in enumerate(nodes)}
    path = [0]
    while (state := commit(nodes[path[-1]], positions[path[-1]], tokens[path[-1]])) in index:
        path.append(index[state])
    return path, state
