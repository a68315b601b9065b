"""Worlds of highway-env: repeatable, with experts who arrive, seen and driven as they are."""

import numpy as np
import pytest

from phalanx.recipes.bev.driving import Episode, drive, what_is_left
from phalanx.recipes.bev.follower import constant_velocity, follow
from phalanx.recipes.bev.grid import BEHIND_M, CELL_M, CELLS, SPEED_UNIT, draw, road_map, to_ego
from phalanx.recipes.bev.scenarios import HISTORY_S, PLANNED_HZ, SCENARIOS
from phalanx.recipes.bev.world import Frame, World

STRAIGHT = constant_velocity(10.0, 8, 0.5)


def run(episode):
    """An episode that asks nobody."""
    with pytest.raises(StopIteration) as stop:
        next(drive(episode))
    return stop.value.value


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_expert_arrives_and_who_looks_at_nothing_does_not(name):
    drives = {
        driver: [run(Episode(name, seed, driver)) for seed in range(2_000_000, 2_000_003)]
        for driver in ("expert", "constant velocity")
    }
    assert all(d.has_arrived and not d.is_crashed for d in drives["expert"])
    assert all(d.score == 100 for d in drives["expert"])
    assert any(d.is_crashed or d.is_off_road for d in drives["constant velocity"])


def test_a_seed_is_an_episode_whatever_was_driven_before():
    from highway_env.vehicle.behavior import IDMVehicle

    def frames():
        world = World(SCENARIOS["highway"], 5, is_expert=True)
        for _ in range(5):
            world.step()
        return world.frames[0]

    first, gap = frames(), IDMVehicle.DISTANCE_WANTED
    # The intersection changes the class of its traffic: no other scenario may notice.
    World(SCENARIOS["intersection"], 1, is_expert=True).step()
    again = frames()
    assert gap == IDMVehicle.DISTANCE_WANTED
    assert np.array_equal(first.ego, again.ego)
    assert np.array_equal(first.others, again.others)


def cell(ahead, right):
    return int((ahead + BEHIND_M) // CELL_M[0]), int(right // CELL_M[1] + CELLS[1] // 2)


@pytest.mark.parametrize("heading", [0.0, 2.0])
def test_a_vehicle_is_drawn_where_it_is_and_as_fast(heading):
    roads = road_map(World(SCENARIOS["highway"], 0, is_expert=True))
    pose = np.array([200.0, 4.0, heading])
    turn = np.array([[np.cos(heading), -np.sin(heading)], [np.sin(heading), np.cos(heading)]])
    places = [turn @ (31.0 - 4.0 * age, -5.25) + pose[:2] for age in range(len(HISTORY_S))]
    others = [np.array([[*place, heading, 10.0, 5.0, 2.0]]) for place in places]
    grid = draw(roads, [Frame(np.zeros(4), other) for other in others], pose)
    for age in range(len(HISTORY_S)):
        cover = grid[2 + age] / 255.0
        assert np.unravel_index(cover.argmax(), CELLS) == cell(31.0 - 4.0 * age, -5.25)
        assert cover.sum() * CELL_M[0] * CELL_M[1] == pytest.approx(5.0 * 2.0, rel=0.02)
    at = cell(31.0, -5.25)
    assert (grid[-2][at] - 128) * SPEED_UNIT == pytest.approx(10.0)
    assert grid[-1][at] == 128
    if heading == 0.0:  # three lanes from y = -2 to 10; the ego vehicle is at 4
        assert grid[0][cell(20.0, 0.0)] == 255
        assert grid[0][cell(20.0, -8.0)] == 0


def test_pure_pursuit_does_what_the_plan_says():
    assert follow(STRAIGHT, 10.0, 0.5) == pytest.approx((0.0, 0.0), abs=1e-9)
    times = 0.5 * np.arange(1, 9)
    for wanted in (-3.0, 2.0):  # m/s2, along a line
        ways = 10.0 * times + wanted * np.minimum(times, 3.0) ** 2 / 2
        steering, acceleration = follow(np.stack([ways, 0 * ways], -1), 10.0, 0.5)
        assert (steering, acceleration) == pytest.approx((0.0, wanted), abs=1e-6)
    assert follow(np.zeros((8, 2)), 0.0, 0.5) == (0.0, 0.0)  # standing is not reversing


def test_pure_pursuit_keeps_to_a_circle():
    """highway-env's vehicle follows a circle of 25 m from its own frame, at 8 m/s."""
    world = World(SCENARIOS["roundabout"], 0, is_expert=False)
    start = world.frames[0].ego
    middle = start[:2] + 25.0 * np.array([-np.sin(start[2]), np.cos(start[2])])
    speed = float(start[3])
    off = []
    for _ in range(5 * PLANNED_HZ):
        pose = world.frames[0].ego
        radius = pose[:2] - middle
        angles = np.arctan2(radius[1], radius[0]) + speed * 0.5 * np.arange(1, 9) / 25.0
        circle = middle + 25.0 * np.stack([np.cos(angles), np.sin(angles)], -1)
        world.step(*follow(to_ego(circle, pose[:3]), float(pose[3]), 0.5))
        off.append(abs(np.linalg.norm(world.frames[0].ego[:2] - middle) - 25.0))
    assert max(off) < 0.8
    assert world.frames[0].ego[3] == pytest.approx(speed, abs=0.5)


def test_a_plan_that_is_kept_is_seen_from_where_the_vehicle_is():
    began = np.array([3.0, 4.0, 0.5, 10.0])
    way = 10.0 * 0.6
    pose = np.array([3.0 + way * np.cos(0.5), 4.0 + way * np.sin(0.5), 0.5, 10.0])
    assert what_is_left(STRAIGHT, 0.6, began, pose) == pytest.approx(STRAIGHT)
