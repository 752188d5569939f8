"""What every engine must do: run it on yours with one fixture, in a pytest with `anyio`.

class TestMine(EngineContract, DurableContract, SharedContract, JumpContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        async with Harness(lambda clock: MyEngine(..., clock=clock)) as harness:
            yield harness  # leave out the contracts that the engine's traits deny
"""

from holdfast.testing.contract.durable import DurableContract
from holdfast.testing.contract.jumping import JumpContract
from holdfast.testing.contract.sharing import SharedContract
from holdfast.testing.contract.whole import EngineContract
from holdfast.testing.harness import Harness

__all__ = ["DurableContract", "EngineContract", "Harness", "JumpContract", "SharedContract"]
