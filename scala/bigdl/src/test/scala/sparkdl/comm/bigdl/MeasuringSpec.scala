// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import java.util.concurrent.CompletableFuture

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.Clock
import sparkdl.comm.ibatch.ComputingTimes
import sparkdl.comm.ps.Span

class MeasuringSpec extends AnyFunSuite {
  private final class Seconds extends Clock {
    var now = 0L
    def pass(seconds: Int): Unit = now += seconds * 1000000000L
    override def nanoTime: Long = now
    override def await(done: CompletableFuture[_], deadline: Long): Unit = fail("unexpected wait")
    override def after(nanos: Long)(task: => Unit): Unit = fail("unexpected delay")
  }

  private def span(begun: Int, ended: Int): Span = Span(begun * 1000000000L, ended * 1000000000L)

  test("the time of a layer excludes its waits") {
    val clock = new Seconds
    val times = new LayerTimes(2, 3, clock)
    assert(times.medians === None)
    times.begin()
    clock.pass(1)
    times.start(0)
    clock.pass(2)
    times.stop()
    clock.pass(4)
    times.start(1)
    clock.pass(8)
    times.end()
    assert(times.medians === Some(Seq(2.0, 8.0)))
  }

  test("backward time counts for the layer that was just computed") {
    val clock = new Seconds
    val times = new LayerTimes(2, 3, clock)
    times.begin()
    clock.pass(1)
    times.record(1)
    clock.pass(2)
    times.skip()
    clock.pass(4)
    times.record(0)
    times.end()
    assert(times.medians === Some(Seq(4.0, 1.0)))
  }

  test("times that were not measured are None") {
    val profiler = new Profiler(2, 5, new Seconds)
    assert(profiler.times === ComputingTimes(None, None, 0, None))
  }

  test("iterations and their optimizer time are measured") {
    val clock = new Seconds
    val profiler = new Profiler(2, 5, clock)
    profiler.beginIteration(updating = 10)
    clock.pass(4)
    profiler.beginIteration(updating = 11)
    clock.pass(8)
    profiler.beginIteration(updating = 14)
    clock.pass(16)
    profiler.beginIteration(updating = 16)
    assert(profiler.times === ComputingTimes(None, None, 2, Some(16)), "the first two settle")
    profiler.restart() // the buckets change
    for (taken <- Seq(1, 1)) {
      clock.pass(taken)
      profiler.beginIteration(updating = 16)
    }
    assert(profiler.times.iteration === None)
    clock.pass(8)
    profiler.beginIteration(updating = 16)
    assert(profiler.times.iteration === Some(8))
  }

  test("a nested phase counts once, and computing phases are recorded") {
    val clock = new Seconds
    val watch = new Stopwatch(clock)
    watch.time(Phase.Forward) {
      clock.pass(1)
      watch.time(Phase.Pull)(clock.pass(2))
      clock.pass(4)
    }
    clock.pass(8)
    watch.time(Phase.Push)(clock.pass(16))
    watch.move(Phase.Push, Phase.Aggregate, 3)
    val expected =
      Map(Phase.Forward -> 5.0, Phase.Pull -> 2.0, Phase.Push -> 13.0, Phase.Aggregate -> 3.0)
    assert(
      Phase.values.toSeq.map(phase => phase -> watch.seconds(phase)).filter(_._2 > 0).toMap === expected
    )
    assert(watch.takeComputed() === Seq(span(0, 1), span(3, 7)))
    assert(watch.takeComputed().isEmpty)
  }

  test("overlapped time, communication only and computation only are separated") {
    val overlap = new Overlap
    overlap.addComputing(Seq(span(0, 10), span(14, 20)))
    overlap.addTransfers(Seq(span(8, 12), span(9, 15), span(19, 30)))
    overlap.settle(25000000000L)
    assert(overlap.parts === Map(
      "overlapped" -> 4.0,
      "communication_only" -> 9.0,
      "computation_only" -> 12.0
    ))
  }

  test("a transfer that is reported an iteration later counts at its own time") {
    val overlap = new Overlap
    overlap.addComputing(Seq(span(0, 10)))
    overlap.settle(4000000000L)
    overlap.addTransfers(Seq(span(6, 12)))
    overlap.settle(Long.MaxValue)
    assert(overlap.parts === Map(
      "overlapped" -> 4.0,
      "communication_only" -> 2.0,
      "computation_only" -> 6.0
    ))
  }
}
