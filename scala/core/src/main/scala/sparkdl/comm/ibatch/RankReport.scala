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
