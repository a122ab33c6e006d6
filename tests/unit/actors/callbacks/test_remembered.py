from actors.callbacks.remembered import Remembered
from events.errors import DatabaseUnavailable


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Database:
    error: Exception | None = None

    async def ask(self, name: str) -> str:
        if self.error is not None:
            raise self.error
        return f"of {name}"


async def test_what_was_known_is_known_while_the_database_is_away_or_its_answer_is_broken() -> None:
    clock, database = Clock(), Database()
    remembered = Remembered(database.ask, unknown="?", clock=clock)
    assert await remembered.get("a") == "of a"
    for error in (DatabaseUnavailable(), KeyError("nobody foresaw this")):
        clock.now += 60
        database.error = error
        assert await remembered.get("a") == "of a"
        assert await remembered.get("b") == "?"


async def test_many_names_push_out_the_oldest_alone() -> None:
    clock, database = Clock(), Database()
    remembered = Remembered(database.ask, unknown="?", clock=clock)
    for number in range(10_001):
        await remembered.get(str(number))
    clock.now += 60
    database.error = DatabaseUnavailable()
    assert await remembered.get("1") == "of 1"
    assert await remembered.get("10000") == "of 10000"
    assert await remembered.get("0") == "?"
