package sparkdl.comm.ibatch

import scala.collection.immutable.ListMap

/**
 * Tries what the planner predicts, and keeps it only if nothing plainer is faster: each candidate is used for some iterations,
 * the `planned` batches first, then the `others`; then the fastest stays. Of those that are as fast but for chance, the one
 * with the fewest batches does: each costs executors work, of which they may have more later.
 *
 * @param known what was measured with some of them before
 */
private[ibatch] final class Autotuner(
    planned: Policy,
    others: Seq[Policy],
    known: ListMap[Policy, Autotuner.Measured]
) {
  import Autotuner._

  private var waiting = others
  private var inUse = planned
  private var measured = known
  private var over = false

  /** The one in use now. */
  def current: Policy = inUse

  /** Those that were tried so far, and those that were known. */
  def tried: ListMap[Policy, Measured] = measured

  /** Whether [[current]] is what was chosen. */
  def isOver: Boolean = over

  /** Notes what the current one is like, and goes on to the next, or at last to what stays. */
  def took(now: Measured): Unit = {
    measured = measured.updated(inUse, now)
    waiting.headOption match {
      case Some(next) =>
        inUse = next
        waiting = waiting.tail
      case None =>
        over = true
        val least = measured.values.map(_.seconds).min
        inUse = measured.filter(least >= (1 - Margin) * _._2.seconds).minBy { case (policy, each) =>
          (each.batches, policy != planned, each.seconds)
        }._1
    }
  }
}

private[ibatch] object Autotuner {

  /**
   * @param seconds of an iteration
   * @param predicted likewise
   * @param pulls batches of parameters; `pushes`: of gradients
   */
  final case class Measured(seconds: Double, predicted: Double, pulls: Int, pushes: Int) {
    def batches: Int = pulls + pushes
  }

  /** The share by which something must be faster than another: less is chance. */
  private val Margin = 0.02
}
