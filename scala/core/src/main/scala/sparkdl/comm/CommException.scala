package sparkdl.comm

/**
 * A failure that the Python side turns into a typed error.
 *
 * @param kind one of PeerLost, Deadline, Protocol, Plugin, Conf, Memory, Closed, File
 * @param peer the rank that the operation waited for, or -1
 */
final class CommException(val kind: String, message: String, val peer: Int = -1, cause: Throwable = null)
    extends RuntimeException(message, cause)
