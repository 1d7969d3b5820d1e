// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.ScatteringByteChannel
import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging

import sparkdl.comm.{Callbacks, Clock}
import sparkdl.comm.transport.{
  Chunk,
  ChunkFailure,
  ChunkFetch,
  ChunkPeer,
  ChunkTarget,
  DirectChunkTarget
}

/**
 * Fetch of one chunk in progress. When it ends, it releases its target. From then on it drops bytes
 * that still arrive.
 *
 * @param deadlines keep the fetch until it ends
 */
private[chunks] final class PendingFetch(
    from: ChunkPeer,
    val chunk: Chunk,
    into: ChunkTarget,
    val deadline: Long,
    deadlines: DeadlineTimer,
    onEnd: Option[ChunkFailure] => Unit
) extends ChunkFetch
    with Logging {
  // Both are null once the fetch has ended.
  private var target = into
  private var done = onEnd

  /** True if the target can read from the socket. */
  val isDirect: Boolean = into.isInstanceOf[DirectChunkTarget]
  @volatile private var receivedBytes = 0

  // Used on the connection's event loop only.
  private var partMissingBytes = 0
  private var readAheadBytes = 0

  deadlines.add(this)

  def isOver: Boolean = synchronized(target == null)

  override def cancel(): Unit =
    finish(Some(new ChunkFailure.Cancelled(s"$description was cancelled")))

  def cancelOnClose(): Unit =
    finish(Some(new ChunkFailure.Cancelled(s"$description: the network was closed")))

  def expire(): Unit =
    finish(
      Some(new ChunkFailure.Deadline(
        s"$description: $receivedBytes bytes of ${chunk.length} came before its deadline"
      ))
    )

  def peerLost(cause: Throwable): Unit =
    finish(Some(new ChunkFailure.PeerLost(s"$description: $cause", cause)))

  def notServed(cause: Throwable): Unit =
    finish(Some(new ChunkFailure.NotServed(
      s"$description: ${cause.getMessage.linesIterator.next()}",
      cause
    )))

  /**
   * Begin a part of `length` bytes. Return false if it is empty or longer than the rest of the
   * chunk.
   */
  def beginPart(length: Int): Boolean = {
    partMissingBytes = length
    0 < length && length <= chunk.length - receivedBytes
  }

  /** Bytes of the current part that have not arrived. */
  def missingBytes: Int = partMissingBytes

  def isComplete: Boolean = receivedBytes == chunk.length

  /** Take the next bytes of the part. */
  def write(bytes: ByteBuffer): Unit = {
    val count = bytes.remaining
    receivedBytes += count
    partMissingBytes -= count
    if (readAheadBytes > 0) readAheadBytes -= count // the target has them already
    else passToTarget(_.write(bytes))
  }

  /**
   * Read bytes of this chunk from the connection into the target. [[write]] counts them afterwards.
   */
  def read(from: ScatteringByteChannel, maxCount: Int): Int = {
    val result = passToTarget { target =>
      try Right(target.asInstanceOf[DirectChunkTarget].read(from, maxCount))
      catch { case e: IOException => Left(e) } // the connection failed, not the target
    }
    val count = result.fold(DirectReadAllocator.drop(from, maxCount))(_.fold(throw _, identity))
    readAheadBytes = math.max(0, count)
    count
  }

  /**
   * Pass bytes to the target, unless the fetch has ended. Return None if the target did not take
   * them.
   */
  private def passToTarget[T](take: ChunkTarget => T): Option[T] = {
    val taken = synchronized {
      try Right(if (target == null) None else Some(take(target)))
      catch {
        case NonFatal(e) =>
          Left(new ChunkFailure.TargetFailed(s"$description: its target failed: $e", e))
      }
    }
    taken.left.foreach(failure => finish(Some(failure)))
    taken.toOption.flatten
  }

  /** End the fetch: the whole chunk has arrived. */
  def complete(): Unit = finish(None)

  private def finish(failure: Option[ChunkFailure]): Unit = {
    val callback = synchronized {
      val callback = done
      target = null
      done = null
      callback
    }
    if (callback != null) {
      deadlines.remove(this)
      // An exception would end the connection, which others share.
      try callback(failure)
      catch { case e: Throwable => logError(s"$description: the caller's callback failed", e) }
    }
  }

  private def description: String = s"chunk ${Wire.request(chunk)} of ${from.host}:${from.port}"
}

/**
 * Timer that ends fetches at their deadlines. It keeps one or two tasks in the clock, not one for
 * each fetch.
 */
private[chunks] final class DeadlineTimer(clock: Clock) {
  private val pending = ConcurrentHashMap.newKeySet[PendingFetch]
  private var nextCheck = Long.MaxValue

  /** Fetches in progress. */
  def count: Int = pending.size

  def add(fetch: PendingFetch): Unit = {
    pending.add(fetch)
    synchronized(if (fetch.deadline < nextCheck) checkAt(fetch.deadline))
  }

  def remove(fetch: PendingFetch): Unit = pending.remove(fetch)

  /** Call `act` with each fetch, as [[Callbacks.callAll]]. */
  def foreach(act: PendingFetch => Unit): Unit = Callbacks.callAll(pending.asScala)(act)

  private def checkAt(time: Long): Unit = {
    clock.after(math.max(0, time - clock.nanoTime))(check())
    nextCheck = time
  }

  private def check(): Unit = {
    val now = clock.nanoTime
    try foreach(fetch => if (fetch.deadline <= now) fetch.expire())
    finally
      synchronized {
        if (now >= nextCheck) {
          nextCheck = Long.MaxValue
          pending.asScala.map(_.deadline).reduceOption(_ min _).foreach(checkAt)
        }
      }
  }
}
