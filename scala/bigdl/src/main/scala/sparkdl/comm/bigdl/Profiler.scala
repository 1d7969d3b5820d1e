package sparkdl.comm.bigdl

import sparkdl.comm.Clock
import sparkdl.comm.ibatch.{ComputingTimes, RecentSteps}

/** Measurements of one rank's computing. Medians are over the last `steps` steps. */
private[bigdl] final class Profiler(layers: Int, steps: Int, clock: Clock) {
  import Profiler._

  val forward, backward = new LayerTimes(layers, steps, clock)
  private val updates = new RecentSteps[Double](steps)
  private val iterations = new RecentSteps[Double](math.max(0, steps - SettlingIterations))
  private var begun = Option.empty[(Long, Double)]

  /**
   * Begin an iteration, which ends the one before.
   *
   * @param updating seconds that the optimizer has taken in all iterations so far
   */
  def beginIteration(updating: Double): Unit = {
    val now = clock.nanoTime
    begun.foreach { case (before, earlier) =>
      iterations.add((now - before) / 1e9)
      updates.add(updating - earlier)
    }
    begun = Some((now, updating))
  }

  def times: ComputingTimes = {
    def median(of: RecentSteps[Double]) = if (of.isEmpty) None else Some(RecentSteps.median(of.values))
    ComputingTimes(forward.medians, backward.medians, median(updates).getOrElse(0), median(iterations))
  }
}

private object Profiler {

  /**
   * Iterations until new buckets take effect: one for pulls, two for pushes. A measurement of so few steps cannot time
   * them.
   */
  private val SettlingIterations = 2
}
