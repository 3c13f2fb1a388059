"""Derive blocking methods from coroutine methods: same parameters, types and docstring."""

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from keepthread.sync.loop import Call, Loop

A_co = TypeVar("A_co", covariant=True)
A_contra = TypeVar("A_contra", contravariant=True)
A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Wrapper(Generic[A_co]):
    """A blocking object: it holds an asynchronous object and the loop that runs its methods."""

    def __init__(self, loop: Loop, wrapped: A_co) -> None:
        """Wrap an asynchronous object."""
        self._loop = loop
        self._wrapped = wrapped


class BlockingMethod(Protocol[A_contra, P, T_co]):
    """The type of a derived method: a descriptor that keeps the parameters of the original.

    At runtime it is a plain function, so `inspect` and `help` show an ordinary method.
    """

    @overload
    def __get__(
        self, instance: None, owner: type
    ) -> Callable[Concatenate[Wrapper[A_contra], P], T_co]: ...
    @overload
    def __get__(
        self, instance: Wrapper[A_contra], owner: type | None = None
    ) -> Callable[P, T_co]: ...


def stepped(loop: Loop, stream: AsyncGenerator[T]) -> Generator[T]:
    """Yield what an asynchronous generator yields; it is closed when this one is."""

    async def step() -> list[T]:
        try:
            return [await anext(stream)]
        except StopAsyncIteration:
            return []

    try:
        while found := loop.run(step):
            yield found[0]
    finally:
        loop.run(stream.aclose)


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> BlockingMethod[A, P, T]:
    """Return a method that waits for a coroutine method and returns its result.

    A `progress` argument is called in the thread that waits.
    """

    @wraps(method)
    def call(self: Wrapper[A], *args: P.args, **kwargs: P.kwargs) -> T:
        _, result = _run(self, call.__name__, args, kwargs)
        return result

    return cast("BlockingMethod[A, P, T]", call)


def blocking_wrapped(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
    wrap: Callable[[Loop, T], R],
) -> BlockingMethod[A, P, R]:
    """Return a method as `blocking` does, whose result is wrapped in a blocking class."""

    @wraps(method)
    def call(self: Wrapper[A], *args: P.args, **kwargs: P.kwargs) -> R:
        return wrap(*_run(self, call.__name__, args, kwargs))

    _annotate_return(call, wrap)
    return cast("BlockingMethod[A, P, R]", call)


def blocking_open(
    open_async: Callable[P, AbstractAsyncContextManager[T]],
    wrap: Callable[[Loop, T], R],
    name: str,
) -> Callable[P, R]:
    """Return a function that enters what another opens, on a loop that leaves it at its end.

    `name` is the name of the blocking class, which may not exist yet.
    """

    @wraps(open_async)
    def opened(*args: P.args, **kwargs: P.kwargs) -> R:
        opening = open_async(*args, **kwargs)

        async def leave() -> None:
            await opening.__aexit__(None, None, None)

        loop = Loop(leave)
        try:
            return wrap(loop, loop.run(opening.__aenter__))
        except BaseException:
            loop.end()
            raise

    _annotate_return(opened, name)
    return opened


def _run(
    wrapper: Wrapper[Any], name: str, args: tuple[object, ...], kwargs: dict[str, Any]
) -> tuple[Loop, Any]:
    """Wait for a coroutine method of the wrapped object; return the loop and the result."""
    loop, wrapped = wrapper._loop, wrapper._wrapped  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - hidden from users only
    call = Call(loop)
    if (progress := kwargs.get("progress")) is not None:
        kwargs = {**kwargs, "progress": call.notify_caller(progress)}
    # By name, so that a subclass or a patch of the asynchronous class takes effect.
    return loop, call.run(getattr(wrapped, name), *args, **kwargs)


def _annotate_return(function: Callable[..., object], result: object) -> None:
    """Let `help` show what the blocking function returns; `wraps` took the original's."""
    signature = inspect.signature(function).replace(return_annotation=result)
    setattr(function, "__signature__", signature)  # noqa: B010 - the type does not have it
