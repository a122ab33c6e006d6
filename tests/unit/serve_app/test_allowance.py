from serve_app.allowance import Allowance


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_owner_has_so_many_in_any_minute() -> None:
    clock = Clock()
    allowance = Allowance(2, clock=clock)
    assert allowance.take("alice") == 0
    clock.now = 30
    assert allowance.take("alice") == 0
    assert allowance.take("alice") == 30
    assert allowance.take("bob") == 0
    clock.now = 60
    assert allowance.take("alice") == 0
    assert allowance.take("alice") == 30


def test_a_refusal_takes_nothing() -> None:
    clock = Clock()
    allowance = Allowance(1, clock=clock)
    assert allowance.take("alice") == 0
    for second in range(60):
        clock.now = second
        assert allowance.take("alice") == 60 - second
    clock.now = 60
    assert allowance.take("alice") == 0
