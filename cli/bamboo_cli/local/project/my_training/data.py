"""The data: a map-style data set of (input, target). Replace the points by yours."""

import torch


class Points:
    """Points around the center of their class. Sample i is always the same."""

    def __init__(self, count: int, features: int, classes: int, first: int = 0) -> None:
        generator = torch.Generator().manual_seed(0)
        self.centers = torch.randn(classes, features, generator=generator)
        self.count, self.first = count, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(1 + self.first + index)
        target = (self.first + index) % len(self.centers)
        noise = torch.randn(self.centers.shape[1], generator=generator)
        return self.centers[target] + noise, target


def build(count: int, features: int, classes: int, first: int = 0) -> Points:
    """spec.data.factory; the arguments are spec.data.args."""
    return Points(count, features, classes, first)
