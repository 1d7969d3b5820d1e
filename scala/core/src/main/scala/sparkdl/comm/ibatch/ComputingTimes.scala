package sparkdl.comm.ibatch

/**
 * What one rank measured of its own computing; None: nothing.
 *
 * @param forward and `backward`: seconds of each layer
 * @param update seconds of a step in which the optimizer has the thread that computes
 * @param iteration seconds of an iteration
 */
private[comm] final case class ComputingTimes(
    forward: Option[IndexedSeq[Double]],
    backward: Option[IndexedSeq[Double]],
    update: Double,
    iteration: Option[Double]
)
