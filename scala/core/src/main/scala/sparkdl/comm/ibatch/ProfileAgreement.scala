package sparkdl.comm.ibatch

/** What holds for all ranks, of what each of them measured. */
private[ibatch] object ProfileAgreement {

  /**
   * That of the slowest rank, for which all others wait: the layers of the rank that computes longest, and each of the other
   * times of the rank where that is longest. None if no rank measured any.
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

  /** The median; None if no rank measured any. */
  def agreedSeconds(found: Seq[Double]): Option[Double] =
    if (found.isEmpty) None
    else {
      val sorted = found.sorted
      Some((sorted((sorted.size - 1) / 2) + sorted(sorted.size / 2)) / 2)
    }

  /** The largest relative change of what decides about batches: all computation, a start-up and its gap, a transfer. */
  def drift(before: DirectionProfile, now: DirectionProfile): Double =
    Seq[DirectionProfile => Double](_.computing, _.starting, _.perByte).map { of =>
      val (old, current) = (of(before), of(now))
      if (old != 0) math.abs(current - old) / old else if (current > 0) 1.0 else 0.0
    }.max
}
