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
    config, clock = target.config, Stopwatch()
    cache_passes = target.prefill(prompt)
    clock.lap("prefill")
    size = config.block_length
    end = -(-(len(prompt) + settings.gen_length) // size) * size
    commits: list[tuple[int, int]] = []
    passes: list[Pass] = []
    text = list(prompt)
    draft = drafter.draft if drafter and budget else lambda context, budget: []
    for start in range(len(prompt) // size * size, end, size):
        block = tuple(text[start:]) + (config.mask_id,) * (size - len(text[start:]))
        finished = _decode_block(target, block, start, settings, noise, draft, budget, watch, clock, commits, passes)
        text[start:] = finished
        target.advance(torch.tensor(finished, device=target.device))
        if settings.stop == "eos" and config.stop_ids.intersection(text[max(start, len(prompt)) :]):
            break
    generated = text[len(prompt) :][: settings.gen_length]
    tokens = cut_at_stop(generated, config.stop_ids)
    clock.lap("rest")
    return Decoding(tokens, min(len(tokens) + 1, len(generated)), commits, passes, cache_passes, clock.seconds)


def cut_at_stop(tokens: list[int], stop_ids: frozenset[int]) -> list[int]:
    """The tokens before the first stop id."""
    return next((tokens[:i] for i, token in enumerate(tokens) if token in stop_ids), tokens)


def _decode_block(
    target: Target,
    state: State,
    start: int,
    settings: Settings,
    noise: Noise,
    draft: Callable[[Context, int], list[State]],
    budget: int,
    watch: Watch | None,
    clock: Stopwatch,
    commits: list[tuple[int, int]],
    passes: list[Pass],
) -> State:
    """Fill one block, appending to `commits` and `passes`. Its first pass has no table yet and carries no drafts."""
    mask_id = target.config.mask_id
    table: StaleTable | None = None
    first = len(commits)
    while mask_id in state:
        drafts: list[State] = []
        if table is not None:
            context = Context(table, state, start, len(commits) - first, mask_id, settings.temperature, noise)
            clock.lap("rest")
            drafts = usable(draft(context, budget), state, mask_id)[:budget]
            clock.lap("draft")
        nodes = [state, *drafts]
        tokens = torch.tensor(nodes, device=target.device)
        logits = target(tokens)
        positions, chosen = next_commits(
            logits, tokens, start, len(commits) - first, mask_id, settings.temperature, noise
        )
        clock.lap("target")
        path, state = walk(nodes, positions, chosen)
        commits += [(start + positions[node], chosen[node]) for node in path]
        passes.append(Pass(len(drafts), len(path) - 1))
        if watch:
            for step, node in enumerate(path, start=len(commits) - first - len(path)):
                watch(Visit(start, step, nodes[node], logits[node]))
        table = StaleTable.read(logits[path[-1]], tokens[path[-1]] == mask_id, mask_id)
    return state


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
