"""Stores and finds named workflows, and builds the generate requests of their calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.interface import EngineError, FieldError, GraphInvalid, ParametersInvalid
from events.log import utc_now
from events.store.records import (
    EVERY_OWNER,
    ApiKey,
    Scope,
    WorkflowOutcome,
    WorkflowVersion,
)
from events.types import Flavour, NamedWorkflow
from serve_app.acceptance.acceptance import Acceptance, GenerateRequest
from serve_app.acceptance.addresses import MEMBER
from serve_app.access.api_keys import require_scope
from serve_app.bodies import validated
from serve_app.fair_threads import QUICK_BYTES, FairThreads
from serve_app.refusals import (
    TooManyWorkflows,
    WorkflowChanged,
    WorkflowExists,
    WorkflowNotFound,
)
from serve_app.workflows.definition import (
    Definition,
    NewWorkflow,
    WorkflowChanges,
    WorkflowRun,
    require_replaceable,
    value_in,
)
from serve_app.workflows.proposals import (
    graph_in_image,
    nodes_needed_for,
    proposed_inputs,
    proposed_outputs,
    with_types,
)
from settings.constant import constant

if TYPE_CHECKING:
    from events.store.workflows import Workflows

_REFERENCE = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,63})(?:@([1-9]\d{0,8}))?")
"""A name, or a name with a version: `portrait`, `portrait@3`."""
_LISTED_BYTES = constant("WORKFLOWS_LISTED_BYTES", 4 * 1024**2)
"""The largest total size in bytes of the definitions that one call of `definitions` returns."""


@dataclass(frozen=True, slots=True)
class FoundWorkflow:
    """One version of a named workflow with its content."""

    version: WorkflowVersion
    versions: tuple[WorkflowVersion, ...]
    """All versions of the workflow, oldest first."""
    definition: Definition

    @property
    def versioned_name(self) -> str:
        """The name and the version, such as `portrait@3`."""
        return f"{self.version.name}@{self.version.version}"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a version of a named workflow. Implements `acceptance.WorkflowCall`."""

    found: FoundWorkflow
    as_sent: str

    def record_of(self, prompt: Any) -> NamedWorkflow:
        definition = self.found.definition
        return NamedWorkflow(
            name=self.found.version.name,
            version=self.found.version.version,
            inputs={name: value_in(prompt, each) for name, each in definition.inputs.items()},
            outputs={node: name for name, node in definition.outputs.items()},
        )

    def with_input_names(self, error: GraphInvalid) -> EngineError:
        return self.found.definition.with_input_names(error)


class NamedWorkflows:
    """The named workflows that keys may store and run.

    All methods that read or write the database raise DatabaseUnavailable.
    """

    def __init__(self, store: Workflows, acceptance: Acceptance, threads: FairThreads) -> None:
        self._store = store
        self._acceptance = acceptance
        self._threads = threads

    async def all(self, key: ApiKey) -> dict[str, list[WorkflowVersion]]:
        """Return the versions of each workflow that the key may run, oldest first."""
        names: dict[str, list[WorkflowVersion]] = {}
        for each in await self._store.all(key.owner):
            names.setdefault(each.name, []).append(each)
        return names

    async def definitions(self, key: ApiKey) -> dict[str, Definition]:
        """Return the definitions of the workflows that the key may run, by name.

        The definitions are added in the order of their names, until the next one would make them
        larger than `_LISTED_BYTES` in total. That one and all after it are left out.
        """
        wanted, left_bytes = [], _LISTED_BYTES
        for versions in (await self.all(key)).values():
            version = _chosen(versions, None)
            left_bytes -= version.size_bytes
            if left_bytes < 0:
                break
            wanted.append(version)
        contents = await self._store.contents(wanted)

        def parse() -> dict[str, Definition]:
            return {
                each.name: Definition.model_validate_json(contents[each])
                for each in wanted
                if each in contents
            }

        return await self._threads.run(key.owner, parse, is_quick=not wanted)

    async def find(self, key: ApiKey, reference: str, *, shared: bool = False) -> FoundWorkflow:
        """Return the version that `reference` means: `name` or `name@version`.

        A workflow of the key's owner hides a workflow of all owners with the same name. If `shared`
        is true, only a workflow of all owners is found. Raises WorkflowNotFound.
        """
        asked = _REFERENCE.fullmatch(reference)
        if asked is None:
            raise WorkflowNotFound
        name, number = asked[1], asked[2]
        for owner in [EVERY_OWNER] if shared else [key.owner, EVERY_OWNER]:
            if versions := await self._store.of_name(owner, name):
                version = _chosen(versions, None if number is None else int(number))
                return FoundWorkflow(
                    version, tuple(versions), await self._definition(version, key.owner)
                )
        raise WorkflowNotFound

    async def create(self, key: ApiKey, body: NewWorkflow) -> FoundWorkflow:
        """Check and store a new workflow, and return its first version.

        Raises WorkflowExists, TooManyWorkflows, ScopeMissing, and the errors of `_checked`.
        """
        owner = _owner_of(key, shared=body.shared)
        definition = await self._checked(
            key,
            body.endpoint,
            body.prompt,
            inputs=body.inputs,
            outputs=body.outputs,
            description=body.description,
        )
        await self._add(owner, body.name, definition, after=0)
        return await self.find(key, f"{body.name}@1", shared=body.shared)

    async def change(
        self, key: ApiKey, name: str, body: WorkflowChanges, *, shared: bool
    ) -> FoundWorkflow:
        """Store a new version with the given members, mark a version, or do both.

        Members that the body does not have are those of the newest version, except that the outputs
        of a new graph are proposed again. Raises WorkflowNotFound, WorkflowChanged,
        TooManyWorkflows, ScopeMissing, ParametersInvalid if the marked version does not exist, and
        the errors of `_checked`.
        """
        owner = _owner_of(key, shared=shared)
        versions = await self._store.of_name(owner, name)
        if not versions:
            raise WorkflowNotFound
        given = body.model_fields_set - {"marked"}
        after = versions[-1].version
        known = {each.version for each in versions} | ({after + 1} if given else set())
        if body.marked is not None and body.marked not in known:
            # This is checked first, because a refused call must store no version.
            message = f"the workflow has no version {body.marked}"
            raise ParametersInvalid((FieldError("value_error", message, "marked"),))
        if given:
            old = await self._definition(versions[-1], key.owner)
            new_graph = "prompt" in given
            outputs = None if new_graph else old.outputs
            definition = await self._checked(
                key,
                body.endpoint or old.endpoint,
                body.prompt if new_graph else old.prompt,
                inputs=old.inputs if body.inputs is None else body.inputs,
                outputs=outputs if body.outputs is None else body.outputs,
                description=old.description if body.description is None else body.description,
            )
            await self._add(owner, name, definition, after=after)
            after += 1
        if "marked" in body.model_fields_set and not await self._store.mark(
            owner, name, body.marked
        ):
            raise WorkflowNotFound  # It was removed in the meantime.
        return await self.find(key, f"{name}@{after}", shared=shared)

    async def remove(self, key: ApiKey, name: str, *, shared: bool) -> None:
        """Remove all versions. Jobs of the workflow stay. Raises WorkflowNotFound, ScopeMissing."""
        if not await self._store.remove(_owner_of(key, shared=shared), name):
            raise WorkflowNotFound

    async def request_of(
        self,
        found: FoundWorkflow,
        content: Any,
        request: GenerateRequest,
        *,
        reference: str,
    ) -> GenerateRequest:
        """Return the generate request of a call of the workflow `found`.

        `content` is the parsed body of the call. `request` has everything but the graph, and its
        endpoint is empty if the caller names none. `reference` is the name of the workflow as the
        caller sent it. Raises RequestValidationError, ParametersInvalid.
        """

        def build() -> dict[str, Any]:
            call = validated(WorkflowRun, content)
            more = {MEMBER: call.image_put_urls, "extra_data": call.extra_data}
            given = {name: value for name, value in more.items() if value is not None}
            return {"prompt": found.definition.graph_with(call.inputs), **given}

        is_quick = found.version.size_bytes + len(request.body) <= QUICK_BYTES
        built = await self._threads.run(request.key.owner, build, is_quick=is_quick)
        return replace(
            request,
            flavour=Flavour.WORKFLOW,
            endpoint=request.endpoint or found.definition.endpoint,
            content=built,
            workflow=Call(found, as_sent=f"{reference} {request.endpoint}"),
        )

    async def _definition(self, version: WorkflowVersion, owner: str) -> Definition:
        contents = await self._store.contents([version])
        if not contents:  # It was removed in the meantime.
            raise WorkflowNotFound
        parse, content = Definition.model_validate_json, contents[version]
        is_quick = version.size_bytes <= QUICK_BYTES
        return await self._threads.run(owner, parse, content, is_quick=is_quick)

    async def _checked(
        self,
        key: ApiKey,
        endpoint: str,
        prompt: Any,
        *,
        inputs: Mapping[str, Any] | None,
        outputs: Mapping[str, str] | None,
        description: str,
    ) -> Definition:
        """Check that the graph can run on the endpoint, and return the whole definition.

        Inputs and outputs that are None are proposed. Raises the errors of `Acceptance.compiled`,
        InvalidImage, ParametersInvalid.
        """
        if isinstance(prompt, str):
            prompt = await self._threads.run(key.owner, graph_in_image, prompt, is_quick=False)
        content = {"prompt": prompt}
        request = GenerateRequest(
            flavour=Flavour.WORKFLOW,
            key=key,
            endpoint=endpoint,
            body=json.dumps(content).encode(),
            content=content,
        )
        checked = await self._acceptance.compiled(request)
        compiler = checked.compiler

        def build() -> Definition:
            # The workflow keeps the values that the caller sent. In the checked graph, negative
            # seeds are replaced by random seeds.
            graph = {
                node_id: {**node, "inputs": {**(node.get("inputs") or {})}}
                for node_id, node in compiler.members(content)["prompt"].items()
                if node_id in checked.prompt
            }
            named = proposed_outputs(graph, compiler.declared) if outputs is None else outputs
            graph = nodes_needed_for(graph, named) if named else graph
            if inputs is None:
                typed = proposed_inputs(graph, compiler.declared)
            else:
                require_replaceable(graph, inputs)
                typed = with_types(graph, inputs, compiler.declared)
            return Definition(
                prompt=graph,
                inputs=typed,
                outputs=dict(named),
                endpoint=endpoint,
                description=description,
            )

        return await self._threads.run(key.owner, build, is_quick=False)

    async def _add(self, owner: str, name: str, definition: Definition, *, after: int) -> None:
        content = definition.model_dump_json(exclude_none=True)
        outcome = await self._store.add(owner, name, content, after=after, at=utc_now())
        match outcome:
            case WorkflowOutcome.EXISTS:
                raise WorkflowExists
            case WorkflowOutcome.MISSING:
                raise WorkflowNotFound
            case WorkflowOutcome.CHANGED:
                raise WorkflowChanged
            case WorkflowOutcome.FULL:
                raise TooManyWorkflows


def _chosen(versions: list[WorkflowVersion], number: int | None) -> WorkflowVersion:
    """Return the version with this number; without a number the marked or the newest one."""
    if number is None:
        return max(versions, key=lambda each: (each.is_marked, each.version))
    for each in versions:
        if each.version == number:
            return each
    raise WorkflowNotFound


def _owner_of(key: ApiKey, *, shared: bool) -> str:
    """Return the owner of a workflow that the key changes. Raises ScopeMissing."""
    if not shared:
        return key.owner
    require_scope(key, Scope.ADMIN)
    return EVERY_OWNER
