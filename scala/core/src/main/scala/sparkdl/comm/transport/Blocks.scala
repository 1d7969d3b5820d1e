package sparkdl.comm.transport

import java.nio.ByteBuffer
import java.util.concurrent.CompletableFuture

/** Where an executor serves its blocks. */
final case class BlockServer(host: String, port: Int, executorId: String)

/** Where the bytes of a block go as they arrive. A failed transfer begins again with [[restart]]. */
trait BlockSink {

  /** Most bytes that it takes. */
  def maxBytes: Long

  /** Whether a block of so many bytes, at most [[maxBytes]], is what should come. */
  def expects(bytes: Long): Boolean = bytes == maxBytes

  def restart(): Unit

  /** Takes all that remains in `from`. */
  def write(from: ByteBuffer): Unit
}

/** The blocks that this executor serves, and the way to those that others serve. A block is named by job and name. */
trait Blocks {

  /** Inline threshold: blocks of up to so many bytes do not repay a fetch and travel inside of the control message. */
  def inlineThreshold: Long

  /** Where the others find what [[put]] publishes here. */
  def here: BlockServer

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

  /** Fetches a block from the server that has it, piece by piece into `sink`, asking nobody where it is. */
  def fetch(from: BlockServer, job: Long, name: String, sink: BlockSink): CompletableFuture[Void]
}
