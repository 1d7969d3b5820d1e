// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ibatch

import scala.collection.immutable.ListMap

/**
 * Trial of a plan against simpler policies. Each candidate is used for some iterations: first the
 * `planned` batches, then the `others`. Then the fastest stays. Among candidates that differ by
 * chance only, the one with the fewest batches stays: each batch costs work on executors, which may
 * have less time for it later.
 *
 * While the first candidate is used, executors still compile the code for several batches. So the
 * plan is used once more if it was not the fastest, and its faster measurement counts.
 *
 * @param known earlier measurements of some policies
 */
private[ibatch] final class Autotuner(
    planned: Policy,
    others: Seq[Policy],
    known: ListMap[Policy, Autotuner.Measured]
) {
  import Autotuner._

  private var untried = others
  private var inUse = planned
  private var measured = known
  private var isRepeated = false // true if the plan is used once more
  private var over = false

  /** Policy in use now. */
  def current: Policy = inUse

  /** Measurements of the policies that were tried, and of those known before. */
  def measurements: ListMap[Policy, Measured] = measured

  /** True if [[current]] is the final choice. */
  def isOver: Boolean = over

  /**
   * Record the measurement of the current policy. Then go on to the next one, or to the final
   * choice.
   */
  def record(now: Measured): Unit = {
    val best = measured.get(inUse).filter(_.seconds < now.seconds).getOrElse(now)
    measured = measured.updated(inUse, best)
    untried.headOption match {
      case Some(next) =>
        inUse = next
        untried = untried.tail
      case None if fastest == planned || isRepeated =>
        inUse = fastest
        over = true
      case None =>
        inUse = planned
        isRepeated = true
    }
  }

  private def fastest: Policy = {
    val least = measured.values.map(_.seconds).min
    measured.filter(least >= (1 - Margin) * _._2.seconds).minBy { case (policy, each) =>
      (each.batches, policy != planned, each.seconds)
    }._1
  }
}

private[ibatch] object Autotuner {

  /**
   * Measurement of one policy.
   *
   * @param seconds per iteration
   * @param predictedSeconds predicted seconds per iteration
   * @param pulls batches of parameters
   * @param pushes batches of gradients
   */
  final case class Measured(seconds: Double, predictedSeconds: Double, pulls: Int, pushes: Int) {
    def batches: Int = pulls + pushes
  }

  /** Relative difference of times below which a difference is chance. */
  private val Margin = 0.02
}
