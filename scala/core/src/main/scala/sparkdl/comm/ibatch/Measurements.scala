// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ibatch

/**
 * Measurements of one rank since its last report; None where it measured nothing.
 *
 * @param seconds per iteration
 */
private[comm] final case class RankReport(
    pull: Option[DirectionProfile],
    push: Option[DirectionProfile],
    seconds: Option[Double]
)

/**
 * Measurements of one rank, of pulls and forward or of pushes and backward.
 *
 * @param compute seconds of each layer
 * @param startup seconds from the request of a batch to its first byte.
 * @param perByte seconds of transfer for each byte that this rank receives
 * @param gap seconds of a start-up that cannot overlap with other start-ups; None if there were
 *    not two batches to measure it
 * @param sum seconds per step in which gradients are added up; 0 for pulls
 * @param update seconds per step in which the optimizer occupies the thread that computes; 0 for
 *    pulls
 */
private[comm] final case class DirectionProfile(
    compute: IndexedSeq[Double],
    startup: Double,
    perByte: Double,
    gap: Option[Double] = None,
    sum: Double = 0,
    update: Double = 0
) {

  /**
   * Return the largest relative change from `before` of a time that decides about batches: all
   * computing, start-up with gap, or transfer.
   */
  def drift(before: DirectionProfile): Double =
    Seq[DirectionProfile => Double](_.computing, _.starting, _.perByte).map { of =>
      val (old, current) = (of(before), of(this))
      if (old != 0) math.abs(current - old) / old else if (current > 0) 1.0 else 0.0
    }.max

  private def computing: Double = compute.sum + sum + update
  private def starting: Double = startup + gap.getOrElse(startup)
}

private[comm] object DirectionProfile {

  /**
   * Return the profile of the slowest rank, for which all others wait. It has the layers of the
   * rank that computes longest, and the maximum of each other time. None if no rank measured any.
   */
  def agree(found: Seq[DirectionProfile]): Option[DirectionProfile] =
    if (found.isEmpty) None
    else
      Some(DirectionProfile(
        found.map(_.compute).maxBy(_.sum),
        found.map(_.startup).max,
        found.map(_.perByte).max,
        found.flatMap(_.gap).reduceOption(_ max _),
        found.map(_.sum).max,
        found.map(_.update).max
      ))
}

/**
 * Computing times of one rank; None where it measured nothing.
 *
 * @param forward seconds of each layer
 * @param backward seconds of each layer
 * @param update seconds per step in which the optimizer occupies the thread that computes
 * @param iteration seconds per iteration
 */
private[comm] final case class ComputingTimes(
    forward: Option[IndexedSeq[Double]],
    backward: Option[IndexedSeq[Double]],
    update: Double,
    iteration: Option[Double]
)

/** Values of the last `steps` steps. */
private[comm] final class RecentSteps[T](steps: Int) {
  private var kept = Vector.empty[T]

  def add(value: T): Unit = kept = (kept :+ value).takeRight(steps)
  def clear(): Unit = kept = Vector.empty
  def values: IndexedSeq[T] = kept
}

private[comm] object RecentSteps {

  /** Return the median; None if there are no values. */
  def median(values: Seq[Double]): Option[Double] =
    if (values.isEmpty) None
    else {
      val sorted = values.sorted
      Some((sorted((sorted.size - 1) / 2) + sorted(sorted.size / 2)) / 2)
    }
}
