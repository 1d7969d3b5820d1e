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
    override def await(done: CompletableFuture[_], deadline: Long): Unit = fail("nobody waits")
    override def after(nanos: Long)(task: => Unit): Unit = fail("nothing is put off")
  }

  private def span(begun: Int, ended: Int): Span = Span(begun * 1000000000L, ended * 1000000000L)

  test("time counts for the layer that is computed, not for what it waits for") {
    val clock = new Seconds
    val times = new LayerTimes(2, 3, clock)
    assert(times.medians === None)
    times.begin()
    clock.pass(1)
    times.at(0)
    clock.pass(2)
    times.stop()
    clock.pass(4)
    times.at(1)
    clock.pass(8)
    times.end()
    assert(times.medians === Some(Seq(2.0, 8.0)))
  }

  test("of backward, time counts for the layer that was computed") {
    val clock = new Seconds
    val times = new LayerTimes(2, 3, clock)
    times.begin()
    clock.pass(1)
    times.was(1)
    clock.pass(2)
    times.skip()
    clock.pass(4)
    times.was(0)
    times.end()
    assert(times.medians === Some(Seq(4.0, 1.0)))
  }

  test("nothing is told of what was not measured") {
    val profiler = new Profiler(2, 5, new Seconds)
    assert(profiler.times === ComputingTimes(None, None, 0, None))
  }

  test("of an iteration, the time it took and what the optimizer took of it") {
    val clock = new Seconds
    val profiler = new Profiler(2, 5, clock)
    profiler.iteration(updating = 10)
    clock.pass(4)
    profiler.iteration(updating = 11)
    clock.pass(8)
    profiler.iteration(updating = 14)
    clock.pass(16)
    profiler.iteration(updating = 16)
    assert(profiler.times === ComputingTimes(None, None, 2, Some(8)))
  }

  test("a phase inside of another one counts once, and what computes is told apart") {
    val clock = new Seconds
    val watch = new Stopwatch(clock)
    watch.in(Phase.Forward) {
      clock.pass(1)
      watch.in(Phase.Pull)(clock.pass(2))
      clock.pass(4)
    }
    clock.pass(8)
    watch.in(Phase.Push)(clock.pass(16))
    watch.move(Phase.Push, Phase.Aggregate, 3)
    val expected = Map(Phase.Forward -> 5.0, Phase.Pull -> 2.0, Phase.Push -> 13.0, Phase.Aggregate -> 3.0)
    assert(Phase.values.toSeq.map(phase => phase -> watch.seconds(phase)).filter(_._2 > 0).toMap === expected)
    assert(watch.takeComputed() === Seq(span(0, 1), span(3, 7)))
    assert(watch.takeComputed().isEmpty)
  }

  test("computing and communication are cut into what overlaps and what does not") {
    val overlap = new Overlap
    overlap.computed(Seq(span(0, 10), span(14, 20)))
    overlap.communicated(Seq(span(8, 12), span(9, 15), span(19, 30)))
    overlap.settle(25000000000L)
    assert(overlap.parts === Map("overlapped" -> 4.0, "communication_only" -> 9.0, "computation_only" -> 12.0))
  }

  test("a transfer that is told an iteration later counts for the time in which it was") {
    val overlap = new Overlap
    overlap.computed(Seq(span(0, 10)))
    overlap.settle(4000000000L)
    overlap.communicated(Seq(span(6, 12)))
    overlap.settle(Long.MaxValue)
    assert(overlap.parts === Map("overlapped" -> 4.0, "communication_only" -> 2.0, "computation_only" -> 6.0))
  }
}
