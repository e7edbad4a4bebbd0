"""The loop: draft, verify, commit; block after block (paper, section 4; design.md §3).

Every method runs here, under one verifier. A pass scores the block as it stands and the drafts in one forward; the
walk applies the step rule to the accepted state's own logits and moves on while the result is among the drafts.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spot.commit import choose, committed
from spot.drafters.protocol import Context, Drafter, StaleTable
from spot.noise import Noise
from spot.targets.protocol import Target
from spot.tree import State

Commit = tuple[int, int]
"""An absolute position and the token committed there."""


@dataclass(frozen=True)
class Settings:
    """How a text is decoded.

    `stop`: "eos" ends after the block in which a stop id was committed, "length" never. `threshold`: None commits one
    position a step; τ, in (0, 1), every position whose token is likelier, and the best one. `layout` and `cache` are
    the target's. `suffix`: "keep" shows a target that is not block-causal the masked blocks that follow, "skip" does
    not. `pad_pieces` drafts a pass is padded to with copies of its root: 0 for none, -1 for the budget.
    """

    gen_length: int
    temperature: float = 0.0
    stop: str = "eos"
    threshold: float | None = None
    layout: str = "batch"
    cache: bool = True
    suffix: str = "keep"
    pad_pieces: int = 0


@dataclass(frozen=True)
class Pass:
    """One verification pass: how many distinct drafts it carried, how many the walk moved into.

    Where it was asked to `keep` them: the states it scored, all from the block at `start` on, the root first, and the
    numbers of those that the walk went through.
    """

    drafted: int
    accepted: int
    start: int = 0
    nodes: tuple[State, ...] = ()
    path: tuple[int, ...] = ()


@dataclass(frozen=True)
class Decoding:
    """A decoded text. `tokens` are cut at gen_length and before the first stop id; `length` counts that id too.

    `steps` are the commits of each application of the step rule, over every decoded block. NFE is `len(passes)`;
    `cache_passes` (the prefill) are counted apart. `seconds` has prefill, target, draft and rest.
    """

    tokens: list[int]
    length: int
    steps: list[tuple[Commit, ...]]
    passes: list[Pass]
    cache_passes: int
    seconds: dict[str, float]

    @property
    def nfe(self) -> int:
        return len(self.passes)

    @property
    def commits(self) -> list[Commit]:
        """All commits, in order; those of one step by position."""
        return [commit for step in self.steps for commit in step]


@dataclass(frozen=True)
class Visit:
    """A state the walk passed through: its open block's start, the steps taken in it, its tokens.

    And the logits [M, V] of its masked positions.
    """

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
    keep: bool = False,
) -> Decoding:
    """Decode `prompt` (token ids) with `target`; draft-free without a drafter or with budget 0.

    With `keep`, passes keep the states that they scored, which a replay shows.

    Raises ValueError where the prompt holds the mask token, which would be decoded too.
    """
    if target.config.mask_id in prompt:
        at = prompt.index(target.config.mask_id)
        raise ValueError(f"the prompt holds the mask token, {target.config.mask_id}, at position {at}")
    run = _Run(target, prompt, settings, noise, drafter if budget else None, budget, watch, keep)
    end = run.end if settings.suffix == "keep" else None
    cache_passes = target.prefill(prompt, settings.layout, settings.cache, end)
    run.clock.lap("prefill")
    while not run.ended:
        run.one_pass()
    generated = run.text[len(prompt) :][: settings.gen_length]
    tokens = cut_at_stop(generated, target.config.stop_ids)
    length = min(len(tokens) + 1, len(generated))
    run.clock.lap("rest")
    return Decoding(tokens, length, run.steps, run.passes, cache_passes, run.clock.seconds)


def cut_at_stop(tokens: list[int], stop_ids: frozenset[int]) -> list[int]:
    """The tokens before the first stop id."""
    return next((tokens[:i] for i, token in enumerate(tokens) if token in stop_ids), tokens)


class _Run:
    """One decoding under way. `text` holds the prompt and the finished blocks, `block` the one being filled.

    `end` is the position that the text ends at, at the latest.
    """

    def __init__(
        self,
        target: Target,
        prompt: list[int],
        settings: Settings,
        noise: Noise,
        drafter: Drafter | None,
        budget: int,
        watch: Watch | None,
        keep: bool,
    ) -> None:
        self.target, self.settings, self.noise = target, settings, noise
        self.drafter, self.budget, self.watch, self.keep = drafter, budget, watch, keep
        self.clock = Stopwatch()
        self.steps: list[tuple[Commit, ...]] = []
        self.passes: list[Pass] = []
        self.ended = False
        self.size, self.mask_id = target.config.block_length, target.config.mask_id
        self._prompt_length = len(prompt)
        whole = len(prompt) // self.size * self.size if target.config.block_causal else len(prompt)
        self.text = prompt[:whole]
        self.block: State = (*prompt[whole:], *self._masks[len(prompt) - whole :])
        self.end = whole + -(-(len(prompt) + settings.gen_length - whole) // self.size) * self.size
        self._step = 0  # applications of the step rule so far in the block
        self._table: StaleTable | None = None  # a block's first pass has none, and carries no drafts
        self._next_table: StaleTable | None = None

    @property
    def _masks(self) -> State:
        return (self.mask_id,) * self.size

    def one_pass(self) -> None:
        """Draft, verify, walk, and move what is finished into the text."""
        self.clock.lap("rest")
        start, step = len(self.text), self._step
        nodes = [self.block, *sorted(self._drafts(), key=len)]
        self.clock.lap("draft")
        logits = self._score(nodes)
        after = next_states(logits, nodes, start, step, self.mask_id, self.settings, self.noise)
        self.clock.lap("target")
        path, state = walk(nodes, after, step, self._follow)
        kept = (start, tuple(nodes), tuple(node for node, _ in path)) if self.keep else ()
        self.passes.append(Pass(len(nodes) - 1, len(path) - 1, *kept))
        for node, at in path:
            opened, begin = nodes[node][-self.size :], start + len(nodes[node]) - self.size
            self.steps.append(_commits(opened, after[node, at][-self.size :], begin))
            if self.watch:
                self.watch(Visit(begin, at, opened, self._masked_rows(nodes, logits, node)))
        self._settle(state)
        self._look_back(nodes, logits, start, *path[-1])

    def _drafts(self) -> list[State]:
        if self.drafter is None or self._table is None:
            return []
        start, asked = len(self.text), self.settings
        context = Context(
            table=self._table,
            block=self.block,
            start=start,
            step=self._step,
            mask_id=self.mask_id,
            temperature=asked.temperature,
            threshold=asked.threshold,
            noise=self.noise,
            ends=self._closed,
            next_table=self._next_table,
        )
        drafts = self.drafter.draft(context, self.budget)
        return usable(drafts, self.block, self.mask_id, lambda full: self._closed(full, start))[: self.budget]

    def _score(self, nodes: list[State]) -> Tensor:
        """Logits [N, M, V] of the nodes' `open_places`; single blocks come first."""
        blocks = sum(len(node) == self.size for node in nodes)
        places = torch.tensor(open_places(nodes, self.mask_id), device=self.target.device)
        pieces = self.budget if self.settings.pad_pieces < 0 else self.settings.pad_pieces
        padding = [self.block] * max(0, 1 + pieces - len(nodes)) if self.drafter else []
        edges = torch.tensor(nodes[blocks:], device=self.target.device) if blocks < len(nodes) else None
        logits = self.target(torch.tensor(nodes[:blocks] + padding, device=self.target.device), edges, places)
        if edges is None or not padding:
            return logits[: len(nodes)]
        return torch.cat([logits[:blocks], logits[blocks + len(padding) :]])

    def _masked_rows(self, nodes: list[State], logits: Tensor, node: int) -> Tensor:
        """Those of a node's logits [M, V] that are of its masked positions."""
        opened, places = nodes[node][-self.size :], open_places(nodes, self.mask_id)
        rows = [row for row, place in enumerate(places) if opened[place] == self.mask_id]
        return logits[node] if len(rows) == len(places) else logits[node, torch.tensor(rows, device=logits.device)]

    def _ends(self, block: State, start: int) -> bool:
        """Whether the text ends with this full block: the last one, or with a stop id that is not the prompt's."""
        written = block[max(0, self._prompt_length - start) : self.size]
        stopped = self.settings.stop == "eos" and not self.target.config.stop_ids.isdisjoint(written)
        return stopped or start + self.size >= self.end

    def _closed(self, block: State, start: int) -> bool:
        """Whether no draft goes on beyond this full block."""
        return not self.target.config.block_causal or self._ends(block, start)

    def _follow(self, state: State) -> State:
        """`state`; where it fills the block and the text goes on, the next block is open beside it."""
        goes_on = len(state) == self.size and self.mask_id not in state and not self._ends(state, len(self.text))
        return state + self._masks if goes_on else state

    def _settle(self, state: State) -> None:
        """Move full blocks into the text; what is left of `state`, or a masked block, is filled next."""
        while self.mask_id not in state[: self.size]:
            full, state = state[: self.size], state[self.size :] or self._masks
            self.ended = self._ends(full, len(self.text))
            self.text += full
            if self.ended:
                return
            self.target.advance(torch.tensor(full, device=self.target.device))
        self.block = state

    def _look_back(self, nodes: list[State], logits: Tensor, start: int, last: int, step: int) -> None:
        """Keep what the next pass is drafted from: the last accepted node's logits, and a look at the next block."""
        begin, now = start + len(nodes[last]) - self.size, len(self.text)
        if self.drafter and not self.ended:
            for node, state in enumerate(nodes):
                if state[self.size :] == self._masks:
                    self._next_table = self._read_table(nodes, logits, node)
                    break
            here = begin == now
            self._table = self._read_table(nodes, logits, last) if here else None
            if now > start:
                self._table = self._table or (self._next_table if now == start + self.size else None)
                self._next_table = None
        self._step = step + 1 if begin == now else 0

    def _read_table(self, nodes: list[State], logits: Tensor, node: int) -> StaleTable:
        rows = self._masked_rows(nodes, logits, node)
        return StaleTable.read(rows, nodes[node][-self.size :], self.mask_id)


def usable(drafts: list[State], root: State, mask_id: int, ends: Callable[[State], bool]) -> list[State]:
    """The distinct drafts that a pass can score: blocks other than the root, not yet full, of the root's length.

    Or a full block that the text does not end with, followed by the next one, not yet full.
    """
    size = len(root)

    def scores(draft: State) -> bool:
        if len(draft) == size:
            return draft != root and mask_id in draft
        full, opened = draft[:size], draft[size:]
        return len(opened) == size and mask_id in opened and mask_id not in full and not ends(full)

    return [draft for draft in dict.fromkeys(drafts) if scores(draft)]


def next_states(
    logits: Tensor, nodes: list[State], start: int, step: int, mask_id: int, settings: Settings, noise: Noise
) -> dict[tuple[int, int], State]:
    """What the step rule makes of each node, by (node, step); a step that commits several leads to it at several.

    logits [N, M, V] of the nodes' `open_places`; the root, after `step` steps in the block at `start`, comes first. One
    read from the device; noise is computed once for each (step, masked position), shared by all nodes of that step.
    """
    size, noisy = len(nodes[0]), settings.temperature > 0
    visits = _visits(nodes, step, size, mask_id, settings)
    rows = list(dict.fromkeys((n, s if noisy else 0) for n, s in visits))
    opened = [node[-size:] for node in nodes]
    index = torch.tensor(open_places(nodes, mask_id), device=logits.device)
    blocks = torch.tensor([opened[n] for n, _ in rows], device=logits.device)
    tokens = blocks[:, index]
    z = logits
    if len(rows) > len(nodes):
        z = z[torch.tensor([n for n, _ in rows], device=logits.device)]
    gumbel = None
    if noisy:
        at = [(start + len(nodes[n]) - size, s) for n, s in rows]
        distinct = {key: number for number, key in enumerate(dict.fromkeys(at))}
        begin, steps = torch.tensor(list(distinct), device=logits.device)[..., None, None].unbind(1)
        vocabulary = torch.arange(z.shape[-1], device=logits.device)
        gumbel = noise.gumbel(begin + index[:, None], steps, vocabulary)
        gumbel = gumbel[torch.tensor([distinct[key] for key in at], device=logits.device)]
    token, doubt = choose(z, mask_id, settings.temperature, gumbel)
    commit = committed(tokens == mask_id, doubt, settings.threshold)
    after = blocks.index_copy(1, index, torch.where(commit, token, tokens)).tolist()
    states = {(n, s): nodes[n][:-size] + tuple(block) for (n, s), block in zip(rows, after, strict=True)}
    return {(n, s): states[n, s if noisy else 0] for n, s in visits}


def open_places(nodes: list[State], mask_id: int) -> list[int]:
    """The positions of the open block, as long as the first node, that any node has masked."""
    size = len(nodes[0])
    opened = [node[-size:] for node in nodes]
    return [i for i in range(size) if any(block[i] == mask_id for block in opened)]


def _visits(nodes: list[State], step: int, size: int, mask_id: int, settings: Settings) -> list[tuple[int, int]]:
    """Every (node, step) the walk may come to. Where a step commits one position, a node's commits are its steps."""
    visits = []
    for n, node in enumerate(nodes):
        first, free = (step, nodes[0].count(mask_id)) if len(node) == size else (0, size)
        most = free - node[-size:].count(mask_id)
        least = most if settings.threshold is None else min(most, 1)
        visits += [(n, first + s) for s in range(least, most + 1)]
    return visits


def step_rule(target: Target, visit: Visit, settings: Settings, noise: Noise) -> tuple[Commit, ...]:
    """The commits that follow from a visit's own logits alone."""
    after = next_states(
        visit.logits[None], [visit.state], visit.start, visit.step, target.config.mask_id, settings, noise
    )
    return _commits(visit.state, after[0, visit.step], visit.start)


def walk(
    nodes: list[State], after: dict[tuple[int, int], State], step: int, follow: Callable[[State], State]
) -> tuple[list[tuple[int, int]], State]:
    """The (node, step) passed through, from the root, and the state after the last one, which is not among the nodes.

    `after` is `next_states`; `follow` opens the next block beside a full one.
    """
    index = {state: n for n, state in enumerate(nodes)}
    path = [(0, step)]
    while (state := follow(after[path[-1]])) in index:
        node, at = path[-1]
        crossed = len(state) > len(nodes[node])
        path.append((index[state], 0 if crossed else at + 1))
    return path, state


def _commits(before: State, after: State, start: int) -> tuple[Commit, ...]:
    pairs = enumerate(zip(before, after, strict=True), start)
    return tuple((position, new) for position, (old, new) in pairs if new != old)
