package sparkdl.comm.ibatch

/**
 * Measurements of one rank, of pulls and forward or of pushes and backward.
 *
 * @param compute seconds of each layer
 * @param startup seconds from the request of a batch to its first byte.
 * @param perByte seconds of transfer for each byte that this rank receives
 * @param gap seconds of a start-up that cannot overlap with other start-ups; None without two batches to measure it
 * @param sum of pushes: seconds per step in which gradients are added up
 * @param update of pushes: seconds per step in which the optimizer occupies the thread that computes
 */
private[comm] final case class DirectionProfile(
    compute: IndexedSeq[Double],
    startup: Double,
    perByte: Double,
    gap: Option[Double] = None,
    sum: Double = 0,
    update: Double = 0
) {
  def computing: Double = compute.sum + sum + update
  def starting: Double = startup + gap.getOrElse(startup)
}
