package sparkdl.comm.transport

import java.io.IOException
import java.nio.ByteBuffer

/** The blocks that this executor serves. A block is named by job and name. */
trait Blocks {

  /** Inline threshold: blocks of up to so many bytes do not repay a fetch and travel inside of the message about them. */
  def inlineThreshold: Long

  /** Spark's id of this executor. */
  def executorId: String

  /**
   * Publishes `chunks` as they lie, without copying them. Where Spark has no free memory for it the block goes to disk, and
   * under memory pressure it may move there (it is never dropped), which the caller's memory survives.
   */
  def put(job: Long, name: String, chunks: Array[ByteBuffer]): Unit

  /**
   * Removes the block once no reader is left.
   *
   * @param over
   *   asked while readers are waited for; true ends the wait. At least one attempt is made whatever it says
   * @return
   *   false if readers were still there in the end
   */
  def retire(job: Long, name: String, over: () => Boolean): Boolean

  /** Bytes of the block that are in memory and on disk; None if it is not here. */
  def status(job: Long, name: String): Option[(Long, Long)]

  /**
   * Reads a block that is here, piece by piece.
   *
   * @param take called for each piece, in their order
   * @throws IOException if the block is not here
   */
  def read(job: Long, name: String)(take: ByteBuffer => Unit): Unit
}
