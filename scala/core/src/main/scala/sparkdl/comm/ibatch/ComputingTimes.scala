package sparkdl.comm.ibatch

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
