package sparkdl.comm.ibatch

/**
 * What one rank measured since it was last asked; None: nothing.
 *
 * @param seconds of an iteration
 */
private[comm] final case class RankReport(
    pull: Option[DirectionProfile],
    push: Option[DirectionProfile],
    seconds: Option[Double]
)
