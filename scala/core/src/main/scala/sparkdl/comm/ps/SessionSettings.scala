package sparkdl.comm.ps

/**
 * Settings of a session, equal on all ranks of a fit.
 *
 * @param ahead as in [[SegmentMap]]
 * @param shared ranks on one host read each other's memory
 * @param inTurn a bucket of parameters is requested only after the one before has arrived.
 * @param profileIterations steps over which transfers are measured; None: they are not measured
 * @param timeoutSeconds longest wait of an operation
 */
private[comm] final case class SessionSettings(
    encodings: Encodings,
    ahead: Boolean = false,
    shared: Boolean = false,
    inTurn: Boolean = false,
    profileIterations: Option[Int] = None,
    timeoutSeconds: Double
)
