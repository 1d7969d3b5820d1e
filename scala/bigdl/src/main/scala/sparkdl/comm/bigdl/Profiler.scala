package sparkdl.comm.bigdl

import sparkdl.comm.Clock
import sparkdl.comm.ibatch.RankReport

/** One rank's measurements; medians are over the last `window` steps. */
private[bigdl] final class Profiler(layers: Int, window: Int, clock: Clock) {
  import Profiler._

  val forward, backward = new LayerTimes(layers, window, clock)
  val pulls, pushes = new NetworkTimes(window)
  private val updates = new Window[Double](window)
  private val iterations = new Window[Double](math.max(0, window - Settling))
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

  def report: RankReport = {
    def median(of: Window[Double]) = if (of.isEmpty) None else Some(Window.median(of.values))
    RankReport(
      forward.medians.flatMap(pulls.profile(_, 0)),
      backward.medians.flatMap(pushes.profile(_, median(updates).getOrElse(0))),
      median(iterations)
    )
  }
}

private object Profiler {

  /** New buckets take effect after one iteration for pulls, after two for pushes; windows that are no longer cannot time them. */
  private val Settling = 2
}
