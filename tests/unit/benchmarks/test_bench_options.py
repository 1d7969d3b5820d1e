"""Options of benchmarks: those that are refused before anything is measured, and the commands of pages."""

from argparse import ArgumentParser
from collections.abc import Callable

import pytest
import torch
from benchmarks import command, tables
from lab import arguments

#: Benchmark, options, and what it says.
REFUSED = [
    ("collectives", "--topology star:2 --rate 100,200", "--rate: star:2 has 1 rails"),
    ("collectives", "--topology bcube:2,2 --algorithms mst", "mst: bcube:2,2 fits bml, lp, ring"),
    ("compression", "--topology bcube:2,2", "one NIC each"),
    ("compression", "--topology ring:3", "ring:3"),
    ("compression", "--topology star:3 --algorithms hitopk,best", "--algorithms: best: there are hitopk"),
    ("compression", "--topology star:3 --density 2", "--density: must be above 0"),
    ("compression", "--density 0", "--density: must be above 0 and at most 1, not 0"),
    ("compression", "--density 1.5", "--density: must be"),
    ("compression", "--density nan", "--density: must be"),
    ("compression", "--operators exact,best", "--operators: best: there are mstopk, exact, topk, dgc"),
    ("compression", "--counts 4M", "--counts: must be whole numbers"),
    ("compression", "--counts 1024,0", "--counts: must be whole numbers, at least 1"),
    ("compression/pto", "--topology ring:3", "ring:3"),
    ("compression/convergence", "--tasks mnist", "--tasks: mnist: there are lenet5, resnet, transformer"),
    ("compression/convergence", "--ways dense,best", "--ways: best: there are dense, exact, mstopk, topk"),
    ("compression/convergence", "--rates fast", "--rates: must be numbers of Mbit/s"),
    ("compression/convergence", "--seeds 0", "--seeds: 0 is not"),
    ("fabric", "--train --setting C7-N1", "--settings: C7-N1: there are C0, C1"),
    ("fabric", "--train --systems gloo", "gloo: there are fabric, fabric-TAU"),
    ("fabric", "--train --systems fabric-0", "async:0"),
    ("fabric", "--train --workers 1", "--workers 1: at least 2"),
    ("fabric", "--lda --systems ddp", "--systems ddp: "),
    ("fabric", "--lda --train", "--train: not allowed with argument --lda"),
    ("fabric", "", "one of the arguments --scheduler --simulate --train --lda is required"),
    ("fabric", "--scheduler 10 --simulate", "--simulate: not allowed with argument --scheduler"),
    ("fabric", "--scheduler 0", "--scheduler: must be whole numbers, at least 1"),
    ("fabric", "--simulate --settings C7-N1", "--settings: C7-N1"),
    ("fabric", "--simulate --systems ddp", "--systems: ddp: the simulator has fabric-TAU"),
    ("fabric", "--simulate --systems gloo", "gloo: there are"),
    ("fabric", "--simulate --systems fabric-0", "async:0"),
    ("jobs", "--systems bml@ring:3", "unknown kind 'ring'"),
    ("jobs", "--systems ddp@bcube:2,2", "one NIC per host"),
    ("jobs", "--rows 0", "--rows: must be whole numbers, at least 1"),
    ("jobs", "--exchange 0", "--exchange: must be numbers above 0"),
    ("jobs", "--loop decoupled --systems auto@star:2", "collective.loop=decoupled: cheapest and auto may choose"),
    ("jobs", "--profile lenet6", "--profile: invalid choice: 'lenet6' (choose from"),
    ("jobs", "--systems gloo+topk:0.1@star:2", "strategy gloo"),
    ("jobs", "--systems ddp+topk:0.1@star:2", "sends whole gradients"),
    ("peers", "--topology ring:3", "unknown kind 'ring'"),
    ("peers", "--topology bcube:2,2", "one NIC per host"),
    ("peers", "--rate inf", "--rate: must be Mbit/s, of at least 1 bit/s, not inf"),
    ("peers", "--peers gloo,nccl", "--peers: gloo, nccl: there are torch-ddp"),
    ("ps", "--topology star:2 --batching whole,sideways", "--batching: sideways: there are whole"),
    ("ps", "--topology star:2 --model real:vgg --rate auto:1", "Give Mbit/s"),
    ("ps", "--topology star:2 --model vgg99", "profile 'vgg99' is not known"),
    ("ps", "--topology star:2 --rate fast", "--rate fast"),
    ("scale/auto", "--profiles vgg19,lenet6", "--profiles: lenet6: there are alexnet"),
    ("zero", "--cells star", "--cells: star: must be TOPOLOGY-NETWORK-PULL"),
    ("zero", "--cells star3-vgg99-1", "star3-vgg99-1: vgg99: there are perceptron, lenet5"),
    ("zero", "--cells star3-vgg19-0", "must be numbers above 0"),
    ("zero", "--cells ring3-vgg19-1", "unknown kind 'ring'"),
    ("zero", "--cells bcube2x2-vgg19-1", "hosts must have one NIC"),
    ("zero", "--cells hosts1x2-lenet5-2", "a single host has no pull"),
    ("nothing", "", "Benchmarks: bigdl, collectives"),
]


@pytest.mark.parametrize(("name", "words", "said"), REFUSED)
def test_refused(name: str, words: str, said: str, refused: Callable[..., str]) -> None:
    assert said in refused(name, *words.split())


def test_every_command_of_a_page_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # a command of a page needs a GPU
    for page in tables.PAGES.iterdir():
        for python, program, name, *words in map(str.split, tables.commands(page)):
            module, parser = command.bench(name), arguments.parser("")
            parse = module.arguments if hasattr(module, "arguments") else ArgumentParser.parse_args
            assert (python, program) == ("python", "python/benchmarks")
            assert parse(parser, words).json == words[-1]
