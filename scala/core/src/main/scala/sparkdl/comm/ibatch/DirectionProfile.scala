package sparkdl.comm.ibatch

/**
 * What a rank measured of pulls and forward, or of pushes and backward.
 *
 * @param compute seconds of each layer
 * @param startup seconds from the request of a batch to its first byte
 * @param perByte seconds of transfer for each byte that this rank receives
 * @param gap how much of a start-up follows those of others, the rest overlaps with them; None where there were no two batches
 * @param sum of pushes: seconds of a step in which gradients are added up
 * @param update likewise, in which the optimizer has the thread that computes
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
