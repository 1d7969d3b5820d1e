package sparkdl.comm.bigdl

import java.util.concurrent.CompletableFuture

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.Clock
import sparkdl.comm.ibatch.ComputingTimes

class MeasuringSpec extends AnyFunSuite {
  private final class Seconds extends Clock {
    var now = 0L
    def pass(seconds: Int): Unit = now += seconds * 1000000000L
    override def nanoTime: Long = now
    override def await(done: CompletableFuture[_], deadline: Long): Unit = fail("nobody waits")
    override def after(nanos: Long)(task: => Unit): Unit = fail("nothing is put off")
  }

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
}
