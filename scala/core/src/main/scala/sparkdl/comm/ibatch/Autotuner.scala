// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ibatch

import scala.collection.immutable.ListMap

/**
 * Trial of a plan against simpler policies. Each candidate is used for some iterations: first the
 * `planned` batches, then the `others`. Then the fastest stays. Among candidates that differ by
 * chance only, the one with the fewest batches stays: each batch costs work on executors, which may
 * have less time for it later.
 *
 * If the plan is not the fastest, a second plan is used, which [[AdaptiveBuckets]] makes from the
 * measurement of the first. The faster measurement counts.
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
  private var repeated = false
  private var over = false

  /** Policy in use now. */
  def current: Policy = inUse

  /** Measurements of the policies that were tried, and of those known before. */
  def measurements: ListMap[Policy, Measured] = measured

  /** True if the plan was not the fastest, so that a second one is used. */
  def isRepeated: Boolean = repeated

  /** True if [[current]] is the final choice. */
  def isOver: Boolean = over

  /**
   * Record the measurement of the current policy. Then go on to the next one, or to the final
   * choice.
   */
  def record(now: Measured): Unit = {
    if (measured.get(inUse).forall(_.seconds > now.seconds))
      measured = measured.updated(inUse, now)
    untried.headOption match {
      case Some(next) =>
        inUse = next
        untried = untried.tail
      case None if fastest == planned || repeated =>
        inUse = fastest
        over = true
      case None =>
        inUse = planned
        repeated = true
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
