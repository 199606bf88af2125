"""The history's rules a second time, as plain lists in memory, and a machine that holds the store against them.

Two windows (two stores) work on one file. Times tick once a call, so that every order is determined.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specchat.history import End, HistoryError, Store

WORDS = ("alpha", "alphabet", "beta", "gamma", "delta")
texts = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)
windows = st.sampled_from((0, 1))
ends: st.SearchStrategy[End] = st.sampled_from(("complete", "stopped", "failed"))
numbers = st.integers(0, 1_000_000)  # taken modulo the length of what there is to choose from


@dataclass
class Node:
    """A message as the model knows it."""

    id: int
    parent: int | None
    role: str
    content: str
    reasoning: str = ""
    state: str = "complete"
    writer: int | None = None


@dataclass
class Tree:
    """A conversation as the model knows it; `shown` lists the leaves shown, the present one last."""

    updated: int
    nodes: dict[int, Node] = field(default_factory=dict)
    shown: list[int] = field(default_factory=list)
    unsent: str = ""
    deleted: bool = False
    title: str | None = None

    def above(self, node: int | None) -> list[int]:
        """From the first turn down to `node`."""
        chain: list[int] = []
        while node is not None:
            chain.insert(0, node)
            node = self.nodes[node].parent
        return chain

    def children(self, parent: int | None) -> list[int]:
        return [node.id for node in self.nodes.values() if node.parent == parent]


class HistoryMachine(RuleBasedStateMachine):
    """Random calls on two windows, each compared with the model."""

    def __init__(self) -> None:
        super().__init__()
        # In memory where there is such a folder: thousands of small transactions, and no need to outlive the test.
        memory = Path("/dev/shm")
        self.folder = tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)
        self.now = 1_750_000_000
        self.trees: dict[str, Tree] = {}

    @initialize()
    def open_windows(self) -> None:
        self.stores = [self.open(), self.open()]

    def open(self) -> Store:
        return Store(Path(self.folder.name) / "history.db", clock=lambda: self.now)

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        self.folder.cleanup()

    def tick(self) -> int:
        self.now += 1
        return self.now

    def node(self, number: int, wanted: Callable[[Node], bool]) -> tuple[Tree, Node] | None:
        found = [(tree, node) for tree in self.trees.values() for node in tree.nodes.values() if wanted(node)]
        return found[number % len(found)] if found else None

    def name(self, number: int) -> str:
        return list(self.trees)[number % len(self.trees)]

    # Conversations

    @rule(window=windows)
    def create(self, window: int) -> None:
        created = self.stores[window].create(pair="small")
        assert created.id not in self.trees
        self.trees[created.id] = Tree(updated=self.tick() - 1)

    @precondition(lambda self: self.trees)
    @rule(window=windows, number=numbers, text=texts)
    def keep_unsent(self, window: int, number: int, text: str) -> None:
        self.stores[window].keep_unsent(self.name(number), text)
        self.trees[self.name(number)].unsent = text

    @precondition(lambda self: self.trees)
    @rule(window=windows, number=numbers, title=st.sampled_from(("", "omega", "omega alpha")))
    def rename(self, window: int, number: int, title: str) -> None:
        self.stores[window].rename(self.name(number), title)
        self.trees[self.name(number)].title = title or None

    @precondition(lambda self: self.trees)
    @rule(window=windows, number=numbers, undo=st.booleans())
    def delete(self, window: int, number: int, undo: bool) -> None:
        self.set_deleted(window, self.name(number), not undo)

    def set_deleted(self, window: int, name: str, deleted: bool) -> None:
        store = self.stores[window]
        store.delete(name) if deleted else store.restore(name)
        self.trees[name].deleted = deleted

    @precondition(lambda self: self.trees)
    @rule(window=windows, number=numbers)
    def purge(self, window: int, number: int) -> None:
        self.set_deleted(window, self.name(number), True)
        # The other window may be writing in it: purged under its hands, there would be nothing to compare.
        for name, tree in self.trees.items():
            if any(node.writer is not None for node in tree.nodes.values()):
                self.set_deleted(window, name, False)
        self.tick()
        gone = {name for name, tree in self.trees.items() if tree.deleted or not (tree.nodes or tree.unsent)}
        assert self.stores[window].purge(timedelta(0), timedelta(0)) == len(gone)
        self.trees = {name: tree for name, tree in self.trees.items() if name not in gone}

    # Turns

    @precondition(lambda self: self.trees)
    @rule(window=windows, number=numbers, place=numbers, text=texts, at_leaf=st.booleans())
    def send(self, window: int, number: int, place: int, text: str, at_leaf: bool) -> None:
        name = self.name(number)
        tree = self.trees[name]
        places = [None, *tree.nodes]
        after = tree.shown[-1] if at_leaf and tree.shown else places[place % len(places)]
        writer = tree.nodes[after].writer if after is not None else None
        if writer == window:
            with pytest.raises(HistoryError, match="still being written"):
                self.stores[window].send(name, text, after=after)
            return
        parent = after
        if after is not None and writer is not None:
            question = tree.nodes[after].parent
            assert question is not None
            parent = tree.nodes[question].parent
        turn = self.stores[window].send(name, text, after=after)
        assert turn.message.parent == parent
        assert turn.forked == (parent != after or bool(tree.children(parent)))
        self.add(tree, Node(turn.message.id, parent, "user", text))
        tree.unsent = ""

    def add(self, tree: Tree, node: Node) -> None:
        assert node.id not in tree.nodes
        tree.nodes[node.id] = node
        tree.shown.append(node.id)
        tree.updated, tree.deleted = self.tick() - 1, False

    @rule(window=windows, number=numbers, text=texts)
    def edit(self, window: int, number: int, text: str) -> None:
        if found := self.node(number, lambda node: node.role == "user"):
            tree, old = found
            new = self.stores[window].edit(old.id, text)
            self.add(tree, Node(new.id, old.parent, "user", text))
            tree.unsent = ""

    @rule(window=windows, number=numbers)
    def begin_reply(self, window: int, number: int) -> None:
        if found := self.node(number, lambda node: node.role == "user"):
            tree, question = found
            reply = self.stores[window].begin_reply(question.id)
            self.add(tree, Node(reply.id, question.id, "assistant", "", "", "streaming", window))

    @rule(window=windows, number=numbers)
    def continue_reply(self, window: int, number: int) -> None:
        found = self.node(number, lambda node: node.role == "assistant")
        if not found:
            return
        tree, reply = found
        if reply.state == "streaming":
            with pytest.raises(HistoryError, match="still being written"):
                self.stores[window].continue_reply(reply.id)
            return
        turn = self.stores[window].continue_reply(reply.id)
        assert turn.forked == bool(tree.children(reply.id))
        assert (turn.message.id == reply.id) != turn.forked
        node = Node(turn.message.id, reply.parent, "assistant", reply.content, reply.reasoning, "streaming", window)
        tree.nodes.pop(node.id, None)
        self.add(tree, node)

    @rule(window=windows, number=numbers, content=texts, reasoning=texts)
    def append_to(self, window: int, number: int, content: str, reasoning: str) -> None:
        found = self.node(number, lambda node: node.role == "assistant")
        if not found:
            return
        reply = found[1]
        if reply.writer != window:
            with pytest.raises(HistoryError, match="has ended, or another window"):
                self.stores[window].append_to(reply.id, content, reasoning)
            return
        self.stores[window].append_to(reply.id, content, reasoning)
        reply.content += content
        reply.reasoning += reasoning

    @rule(window=windows, number=numbers, state=ends)
    def finish(self, window: int, number: int, state: End) -> None:
        if found := self.node(number, lambda node: node.writer == window):
            tree, reply = found
            assert self.stores[window].finish(reply.id, state).content == reply.content
            reply.state, reply.writer = state, None
            tree.updated = self.tick() - 1

    @rule(window=windows, number=numbers)
    def switch(self, window: int, number: int) -> None:
        if found := self.node(number, lambda _: True):
            tree, node = found
            leaf = next(leaf for leaf in reversed(tree.shown) if node.id in tree.above(leaf))
            assert self.stores[window].switch(node.id).leaf == leaf
            tree.shown.append(leaf)

    @rule(window=windows)
    def reopen(self, window: int) -> None:
        self.stores[window].close()
        for tree in self.trees.values():
            for node in tree.nodes.values():
                if node.writer == window:
                    node.state, node.writer = "stopped", None
        self.stores[window] = self.open()

    # What must hold

    @rule(window=windows, terms=st.lists(st.sampled_from((*WORDS, "omega", "alp", '"alpha"')), min_size=1))
    def search(self, window: int, terms: list[str]) -> None:
        def matches(text: str) -> bool:
            return all(
                any(word == term.strip('"') if '"' in term else word.startswith(term) for word in text.split())
                for term in terms
            )

        listed = [tree for tree in self.trees.values() if not tree.deleted]
        nodes = [node for tree in listed for node in tree.nodes.values() if node.state != "streaming"]
        titles = sum(matches(tree.title) for tree in listed if tree.title)
        hits = self.stores[window].search(" ".join(terms), limit=10_000)
        assert {hit.message for hit in hits} - {None} == {node.id for node in nodes if matches(node.content)}
        assert sum(hit.where == "title" for hit in hits) == titles
        for hit in hits:
            found = {hit.excerpt[start:end] for start, end in hit.spans}
            assert found
            assert all(any(word.startswith(t.strip('"')) for t in terms) for span in found for word in span.split())

    @invariant()
    def lists_agree(self) -> None:
        visible = {n: t for n, t in self.trees.items() if not t.deleted and (t.nodes or t.unsent)}
        expected = sorted(visible, key=lambda name: (visible[name].updated, name), reverse=True)
        store = self.stores[self.now % 2]
        pages, page = [], store.conversations(limit=3)
        while page:
            pages += [conversation.id for conversation in page]
            page = store.conversations(limit=3, after=page[-1])
        assert pages == expected

    @invariant()
    def branches_agree(self) -> None:
        store = self.stores[self.now % 2]
        for name, tree in self.trees.items():
            kept = store.conversation(name)
            assert kept.leaf == (tree.shown[-1] if tree.shown else None)
            assert (kept.unsent, kept.messages) == (tree.unsent, len(tree.nodes))
            path = store.path(kept.leaf)
            assert [message.id for message in path] == tree.above(kept.leaf)
            assert store.path(kept.leaf, 2) == path[-2:]
            for message in store.tree(name):
                node = tree.nodes[message.id]
                beside = sorted(tree.children(node.parent))
                assert (message.branch, message.branches) == (beside.index(node.id) + 1, len(beside))
                assert message.depth == len(tree.above(node.id)) - 1
                assert (message.content, message.reasoning) == (node.content, node.reasoning)
                assert (message.state, message.role) == (node.state, node.role)

    @invariant()
    def file_is_sound(self) -> None:
        check_integrity(self.stores[self.now % 2])


def check_integrity(store: Store) -> None:
    """SQLite's own checks, and that the search index holds exactly what the messages hold."""
    db = store._db
    assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    # rank = 1 compares the index with the rows it refers to; a difference raises DatabaseError.
    db.execute("INSERT INTO message_index(message_index, rank) VALUES ('integrity-check', 1)")
