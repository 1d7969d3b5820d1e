package sparkdl.comm.ibatch

/** Agreement of all ranks on what each of them measured. */
private[ibatch] object ProfileAgreement {

  /**
   * Return the profile of the slowest rank, for which all others wait. It has the layers of the rank that computes
   * longest, and the maximum of each other time. None if no rank measured any.
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

  /** Return the median; None if no rank measured any. */
  def medianSeconds(found: Seq[Double]): Option[Double] =
    if (found.isEmpty) None
    else {
      val sorted = found.sorted
      Some((sorted((sorted.size - 1) / 2) + sorted(sorted.size / 2)) / 2)
    }

  /**
   * Return the largest relative change of a time that decides about batches: all computing, start-up with gap, or
   * transfer.
   */
  def drift(before: DirectionProfile, now: DirectionProfile): Double =
    Seq[DirectionProfile => Double](_.computing, _.starting, _.perByte).map { of =>
      val (old, current) = (of(before), of(now))
      if (old != 0) math.abs(current - old) / old else if (current > 0) 1.0 else 0.0
    }.max
}
