// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm

/**
 * Failure that the Python side turns into a typed error.
 *
 * @param peer the rank that the operation waited for, or -1
 */
private[comm] final class CommException(
    val kind: CommException.Kind,
    message: String,
    val peer: Int = -1,
    cause: Throwable = null
) extends RuntimeException(message, cause) {

  /** Description with the kind, which Spark's message about a failed task contains. */
  override def toString: String = s"${getClass.getName}: ${kind.name}: $getMessage"
}

private[comm] object CommException {

  /**
   * Kind of a failure.
   *
   * @param name of the kind in Python
   */
  sealed abstract class Kind(val name: String)

  /** Another rank, its executor, or the connection to it is gone. */
  case object PeerLost extends Kind("PeerLost")

  /** A wait took longer than spark.sparkdl.comm.timeout. */
  case object Deadline extends Kind("Deadline")

  /** A request or a message is not valid here. */
  case object Protocol extends Kind("Protocol")

  /** Jars, or a jar and the Python package, do not match. */
  case object Plugin extends Kind("Plugin")

  /** A key of Spark's conf must change. */
  case object Conf extends Kind("Conf")

  /** The session has ended. */
  case object Closed extends Kind("Closed")

  /** A file or its file system failed. */
  case object File extends Kind("File")

  /** Unexpected error. */
  case object Internal extends Kind("Internal")
}
