package sparkdl.comm.ibatch

import scala.collection.immutable.ListMap

/**
 * Tries what the planner predicts, and keeps it only if nothing plainer is faster: each candidate is used for some iterations,
 * the `planned` batches first, then the `others`; then the fastest stays.
 *
 * @param known what an iteration took with some of them before
 */
private[ibatch] final class Autotuner(planned: Policy, others: Seq[Policy], known: ListMap[Policy, Double]) {
  import Autotuner._

  private var waiting = others
  private var inUse = planned
  private var measured = known
  private var over = false

  /** The one in use now. */
  def current: Policy = inUse

  /** What an iteration took with each that was tried so far, and with those that were known. */
  def seconds: ListMap[Policy, Double] = measured

  /** Whether [[current]] is what was chosen. */
  def isOver: Boolean = over

  /** Notes what an iteration takes with the current one, and goes on to the next, or at last to the fastest. */
  def took(seconds: Double): Unit = {
    measured = measured.updated(inUse, seconds)
    waiting.headOption match {
      case Some(next) =>
        inUse = next
        waiting = waiting.tail
      case None =>
        over = true
        val (fastest, least) = measured.minBy(_._2)
        inUse = if (least < (1 - Margin) * measured(planned)) fastest else planned
    }
  }
}

private[ibatch] object Autotuner {

  /** The share by which something must be faster than the planned batches to be taken instead: less is chance. */
  private val Margin = 0.02
}
