"""Sentences as the drivers print them, in their older and newer forms."""

import pytest

from skillserver.health import infiniband, outcomes, texts

CARD = "amdgpu 0000:c1:00.0: "


def codes(text: str) -> list[str]:
    facts = texts.parse("paste", text)
    return [sign.code for sign in facts.signs] if facts else []


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (CARD + "2 uncorrectable hardware errors detected in umc block", "amd_ras_uncorrectable"),
        (CARD + "amdgpu: socket: 4, die: 0 1 new uncorrectable hardware errors detected in umc block", "amd_ras_uncorrectable"),
        (CARD + "amdgpu: socket: 4, die: 0, 3 uncorrectable hardware errors detected in total in gfx block", "amd_ras_uncorrectable"),
        (CARD + "amdgpu: {12}socket: 10, die: 2, 7 new uncorrectable hardware errors detected in umc block", "amd_ras_uncorrectable"),
        (CARD + "amdgpu: socket: 10, die: 2, 1048560 new uncorrectable hardware errors detected in umc block", "amd_ras_count_suspicious"),
        ("fabric manager NVIDIA GPU driver interface version 535.129.03 don't match with driver version 535.154.05.", "fabric_manager_version"),
        ("NVRM: The NVIDIA probe routine was not called for 8 device(s).", "nouveau"),
    ],
)
def test_a_sentence_is_known_in_every_form(line: str, code: str) -> None:
    assert codes(line) == [code]


@pytest.mark.parametrize("count", ["0", "0 new", "no"])
@pytest.mark.parametrize("place", ["", "amdgpu: ", "amdgpu: socket: 10, die: 0, ", "amdgpu: socket: 10 "])
def test_no_uncorrectable_error_is_no_error(place: str, count: str) -> None:
    assert "amd_ras_uncorrectable" not in codes(f"{CARD}{place}{count} uncorrectable hardware errors detected in umc block")


def test_a_port_in_configuration_training_has_no_link_yet() -> None:
    facts = infiniband.parse("paste", "mlx5_0 port 1: state=1: DOWN phys_state=4: PortConfigurationTraining")
    assert facts
    assert [one.status for one in facts.outcomes] == ["down_portconfigurationtraining"]
    assert [found.severity for found in outcomes.incidents(facts.outcomes)] == ["warning"]
