package sparkdl.comm.bigdl

import java.util.concurrent.CompletableFuture

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.Clock
import sparkdl.comm.ps.{BlockTimes, Span, Transfer}

class MeasuringSpec extends AnyFunSuite {
  private final class Seconds extends Clock {
    var now = 0L
    def pass(seconds: Int): Unit = now += seconds * 1000000000L
    override def nanoTime: Long = now
    override def await(done: CompletableFuture[_], deadline: Long): Unit = fail("nobody waits")
    override def after(nanos: Long)(task: => Unit): Unit = fail("nothing is put off")
  }

  private def block(from: Int, requested: Int, first: Int, last: Int, bytes: Long): BlockTimes =
    BlockTimes(from, requested * 1000000000L, first * 1000000000L, last * 1000000000L, bytes)

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

  test("transfers count once where they overlap, start-ups where the network was idle") {
    val times = new NetworkTimes(3)
    val buckets = Seq(Seq(block(1, 0, 2, 4, 30)), Seq(block(1, 1, 3, 6, 10)), Seq(block(1, 7, 7, 7, 5)))
    times.add(Transfer(45, buckets, sum = Some(Span(0, 1500000000L))))
    times.end()
    val profile = times.profile(IndexedSeq(1.0), 0.5).get
    assert(profile.startup === 2.0)
    assert(profile.perByte === 4.0 / 40, "what came with its notice says nothing")
    assert(profile.gap === Some(1.0))
    assert((profile.sum, profile.update) === ((1.5, 0.5)))
  }

  test("nothing is told of what was not measured") {
    val profiler = new Profiler(2, 5, new Seconds)
    val report = profiler.report
    assert((report.pull, report.push, report.seconds) === ((None, None, None)))
  }
}
