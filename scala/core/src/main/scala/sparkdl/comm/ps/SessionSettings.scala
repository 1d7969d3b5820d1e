package sparkdl.comm.ps

/**
 * Settings of a session, equal on all ranks of a fit.
 *
 * @param pullsAhead as in [[SegmentMap]]
 * @param shared ranks on one host read each other's memory
 * @param isSequential a bucket of parameters is requested only after the one before has arrived.
 * @param profileIterations steps over which transfers are measured; None: they are not measured
 * @param timeoutSeconds longest wait of an operation
 */
private[comm] final case class SessionSettings(
    encodings: Encodings,
    pullsAhead: Boolean = false,
    sharesMemory: Boolean = false,
    isSequential: Boolean = false,
    profileIterations: Option[Int] = None,
    timeoutSeconds: Double
)
