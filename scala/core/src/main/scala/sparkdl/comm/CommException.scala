package sparkdl.comm

/**
 * A failure that the Python side turns into a typed error.
 *
 * @param peer the rank that the operation waited for, or -1
 */
private[comm] final class CommException(
    val kind: CommException.Kind,
    message: String,
    val peer: Int = -1,
    cause: Throwable = null
) extends RuntimeException(message, cause)

private[comm] object CommException {

  /** @param name as Python knows it */
  sealed abstract class Kind(val name: String)

  /** Another rank, its executor, or the connection to it is gone. */
  case object PeerLost extends Kind("PeerLost")

  /** A wait took longer than spark.sparkdl.comm.timeout. */
  case object Deadline extends Kind("Deadline")

  /** A request or a message that makes no sense here. */
  case object Protocol extends Kind("Protocol")

  /** Jars, or a jar and the Python package, do not fit together. */
  case object Plugin extends Kind("Plugin")

  /** A key of Spark's conf has to change. */
  case object Conf extends Kind("Conf")

  /** The session was ended. */
  case object Closed extends Kind("Closed")

  /** A file or its file system. */
  case object File extends Kind("File")

  /** What nobody foresaw. */
  case object Internal extends Kind("Internal")
}
