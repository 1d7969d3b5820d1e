package sparkdl.comm.bigdl

import sparkdl.comm.Clock
import sparkdl.comm.ibatch.{ComputingTimes, RecentSteps}

/** What one rank measures of its computing; medians are over the last `steps` steps. */
private[bigdl] final class Profiler(layers: Int, steps: Int, clock: Clock) {
  import Profiler._

  val forward, backward = new LayerTimes(layers, steps, clock)
  private val updates = new RecentSteps[Double](steps)
  private val iterations = new RecentSteps[Double](math.max(0, steps - Settling))
  private var updating = 0.0
  private var began = Option.empty[Long]

  /** An iteration begins, and the one before it has ended. */
  def iteration(): Unit = {
    val now = clock.nanoTime
    began.foreach { before =>
      iterations.add((now - before) / 1e9)
      updates.add(updating)
    }
    began = Some(now)
    updating = 0
  }

  /** Runs the optimizer, which has the thread that computes for so long. */
  def update[T](body: => T): T = {
    val begun = clock.nanoTime
    val result = body
    updating += (clock.nanoTime - begun) / 1e9
    result
  }

  def times: ComputingTimes = {
    def median(of: RecentSteps[Double]) = if (of.isEmpty) None else Some(RecentSteps.median(of.values))
    ComputingTimes(forward.medians, backward.medians, median(updates).getOrElse(0), median(iterations))
  }
}

private object Profiler {

  /** New buckets take effect after one iteration for pulls, after two for pushes; no more steps than that cannot time them. */
  private val Settling = 2
}
