"""Fields that take more than they hold."""

from typing import TYPE_CHECKING, Any

from jaxtyping import Array, ArrayLike

if TYPE_CHECKING:

    class Converted:
        """An array, made from whatever `jnp.asarray` takes by the field's converter: what a type checker is to know."""

        def __get__(self, instance: Any, owner: Any) -> Array: ...

        def __set__(self, instance: Any, value: ArrayLike) -> None: ...

else:
    Converted = Array
