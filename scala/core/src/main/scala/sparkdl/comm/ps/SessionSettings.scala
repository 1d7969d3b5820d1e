package sparkdl.comm.ps

/**
 * What all ranks of a fit have set alike.
 *
 * @param ahead as in [[SegmentMap]]
 * @param shared ranks on one host read each other's memory
 * @param inTurn a bucket of parameters is asked for when the one before is here
 * @param profileIterations how many steps transfers are measured over; None: they are not measured
 * @param timeoutSeconds how long an operation may wait
 */
private[comm] final case class SessionSettings(
    encodings: Encodings,
    ahead: Boolean = false,
    shared: Boolean = false,
    inTurn: Boolean = false,
    profileIterations: Option[Int] = None,
    timeoutSeconds: Double
)
