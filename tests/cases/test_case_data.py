"""The data of a case: the same bits everywhere, of the distribution that tolerances assume."""

from __future__ import annotations

import hashlib

import pytest
import torch

from cases import AttentionCase, CaseError, counter_hash, hash_numpy
from cases.ragged import indptr, kv_rows, packed_rows, query_rows
from cases.recipes import RECIPES, SPIKE_GAIN, SPIKE_PERIOD, make_data


def _keys(n: int, stream: str = "q", seed: int = 0) -> torch.Tensor:
    return counter_hash.row_keys(
        counter_hash.stream_key(seed, stream), torch.zeros(n, dtype=torch.int64), torch.arange(n)
    )


def _sha(*tensors: torch.Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


# The first outputs of SplitMix64 from state 0, as published with the algorithm.
SPLITMIX64 = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F)


def test_mix_is_splitmix64() -> None:
    golden = counter_hash._signed(0x9E3779B97F4A7C15)
    mixed = counter_hash.mix(torch.arange(1, 4) * golden)
    assert [value % (1 << 64) for value in mixed.tolist()] == list(SPLITMIX64)
    assert [counter_hash._mix_int(i * 0x9E3779B97F4A7C15) for i in (1, 2, 3)] == list(SPLITMIX64)


def test_bits_are_pinned() -> None:
    """If these move, every recorded result belongs to other inputs."""
    assert counter_hash.stream_key(0, "q") == PINNED_KEY
    assert counter_hash.bits(_keys(2), 2).tolist() == PINNED_BITS
    assert _sha(counter_hash.normal(_keys(64), 64)) == PINNED_NORMAL


PINNED_KEY = 7675877989717156114
PINNED_BITS = [[8404278355980972114, -8404066830066236940], [7461118088766846128, 3802748772905990361]]
PINNED_NORMAL = "4b9d3830ff988c62"


def test_normal_is_the_scaled_sum_of_four_16_bit_uniforms() -> None:
    bits = counter_hash.bits(_keys(5), 7).tolist()
    for row, drawn in zip(bits, counter_hash.normal(_keys(5), 7).tolist(), strict=True):
        for word, value in zip(row, drawn, strict=True):
            total = sum((word >> shift) & 0xFFFF for shift in (0, 16, 32, 48))
            expected = torch.tensor(float(total - 2 * 65535)) * torch.tensor(((2**32 - 1) / 3) ** -0.5)
            assert value == expected.item()


def test_normal_has_mean_0_and_variance_1_and_no_tail_past_its_bound() -> None:
    x = counter_hash.normal(_keys(4000), 250).double()
    assert abs(x.mean().item()) < 4e-3  # 4 standard errors of a million draws
    assert abs(x.var().item() - 1) < 8e-3
    assert x.abs().max() < 3.47
    neighbours = (x[:-1] * x[1:]).mean(), (x[:, :-1] * x[:, 1:]).mean()
    assert max(abs(c.item()) for c in neighbours) < 4e-3


def test_signs_are_even() -> None:
    x = counter_hash.signs(_keys(1000), 100)
    assert set(x.unique().tolist()) == {-1, 1}
    assert abs(x.double().mean().item()) < 1.3e-2


def test_chunks_do_not_change_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = _keys(37)
    whole = counter_hash.normal(keys, 48), counter_hash.signs(keys, 48)
    for chunk in (1, 48, 100, 48 * 36, 48 * 37):
        monkeypatch.setattr(hash_numpy, "CHUNK", chunk)
        assert torch.equal(counter_hash.normal(keys, 48), whole[0])
        assert torch.equal(counter_hash.signs(keys, 48), whole[1])
    one_by_one = torch.cat([counter_hash.normal(keys[i : i + 1], 48) for i in range(37)])
    assert torch.equal(one_by_one, whole[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="compares a GPU with the CPU")
def test_a_gpu_draws_the_same_bits() -> None:
    assert torch.equal(counter_hash.normal(_keys(300).cuda(), 333).cpu(), counter_hash.normal(_keys(300), 333))


def test_streams_seeds_and_rows_differ() -> None:
    draws = [counter_hash.normal(_keys(4, stream, seed), 16) for stream in ("q", "k") for seed in (0, 1)]
    rows = torch.cat(draws)
    assert len({tuple(row) for row in rows.tolist()}) == 16


def test_a_row_does_not_depend_on_the_rest_of_the_batch() -> None:
    alone = make_data(AttentionCase(requests=((9, 3),)), "cpu")
    beside = make_data(AttentionCase(requests=((9, 3), (50, 40)), page_size=1), "cpu")
    assert torch.equal(alone.q, beside.q[:3])
    assert torch.equal(alone.k, beside.k[:12])


PINNED_DATA = {
    "normal": "d5e8f32755b6c5f6",
    "small": "469ced1c9d38e995",
    "spiky": "434941a5dbc2c5b1",
    "sunken": "77244347788dc881",
}


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_recipe_bits_are_pinned(recipe: str) -> None:
    built = AttentionCase(requests=((40, 5), (0, 3)), sinks=True, recipe=recipe, seed=3)
    data = make_data(built, "cpu")
    assert data.sinks is not None
    assert _sha(data.q, data.k, data.v, data.sinks) == PINNED_DATA[recipe]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_shapes_and_dtypes(recipe: str, dtype: str) -> None:
    built = AttentionCase(
        requests=((4, 2), (0, 3)), head_dim_qk=128, dtype=dtype, kv_dtype="float8_e4m3fn", recipe=recipe
    )
    data = make_data(built, "cpu")
    assert data.q.shape == (5, 8, 128)
    assert data.k.shape == (9, 2, 128)
    assert data.v.shape == (9, 2, 64)
    assert data.q.dtype == getattr(torch, dtype)
    assert data.k.dtype == data.v.dtype == torch.float8_e4m3fn
    assert data.sinks is None


def test_small_is_a_tenth_and_spiky_has_spikes() -> None:
    built = AttentionCase(requests=((200, 5),), dtype="float32", kv_dtype="float32")
    normal = make_data(built, "cpu")
    small = make_data(built.replace(recipe="small"), "cpu")
    spiky = make_data(built.replace(recipe="spiky"), "cpu")
    torch.testing.assert_close(small.k * 10, normal.k)
    gain = (spiky.k / normal.k)[:, 0, 0]
    assert (gain == SPIKE_GAIN).nonzero().flatten().tolist() == list(range(0, 205, SPIKE_PERIOD))
    assert torch.equal(spiky.q, normal.q * 2)


def test_an_unknown_recipe_is_one_sentence() -> None:
    with pytest.raises(CaseError) as refusal:
        AttentionCase(requests=((1, 1),), recipe="weird")
    assert str(refusal.value) == "recipe is 'weird'; use one of normal, small, spiky, sunken."


def test_rows_are_packed_request_after_request() -> None:
    built = AttentionCase(requests=((3, 2), (5, 0), (0, 1)))
    assert query_rows(built, "cpu").request.tolist() == [0, 0, 2]
    assert query_rows(built, "cpu").position.tolist() == [3, 4, 0]
    assert kv_rows(built, "cpu").position.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0]
    assert packed_rows([0, 2], [7, 9], "cpu").position.tolist() == [9, 10]
    assert indptr([2, 0, 1]).tolist() == [0, 2, 2, 3]
    assert indptr([2, 0, 1]).dtype == torch.int32


def test_every_recipe_of_the_schema_is_written() -> None:
    from cases.recipes import RECIPES as WRITTEN
    from cases.schema import RECIPES as NAMED

    assert tuple(WRITTEN) == NAMED
