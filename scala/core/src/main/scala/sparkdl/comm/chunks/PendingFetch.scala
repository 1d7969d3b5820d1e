package sparkdl.comm.chunks

import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.ScatteringByteChannel

import scala.util.control.NonFatal

import org.slf4j.LoggerFactory

import org.apache.spark.network.client.{StreamCallback, TransportClient}

import sparkdl.comm.transport.{Chunk, ChunkFailure, ChunkFetch, ChunkPeer, ChunkTarget, DirectChunkTarget}

/**
 * A chunk on its way. Spark keeps it until its answer has come, however long that takes, so it lets go of the target once it
 * is over; bytes that come after that are dropped.
 *
 * @param deadlines hold it until it is over
 */
private[chunks] final class PendingFetch(
    from: ChunkPeer,
    chunk: Chunk,
    into: ChunkTarget,
    val deadline: Long,
    deadlines: Deadlines,
    onEnd: Option[ChunkFailure] => Unit
) extends ChunkFetch
    with StreamCallback {
  import PendingFetch._

  // Both until it is over.
  private var target = into
  private var done = onEnd

  private val request = Wire.request(chunk)
  @volatile private var received = 0
  @volatile private var connection: Connection = _

  // Of the connection's own thread.
  private var reads = Option.empty[DirectReads]
  private var readAhead = 0

  deadlines.add(this)

  /** Called on the connection's own thread. */
  def ask(client: TransportClient, connection: Connection, reads: Option[DirectReads]): Unit = {
    this.connection = connection
    val target = synchronized(this.target)
    if (target.isInstanceOf[DirectChunkTarget]) this.reads = reads
    if (target != null) client.stream(request, this)
  }

  override def cancel(): Unit = finish(Some(new ChunkFailure.Cancelled(s"$what was cancelled")))

  def closed(): Unit = finish(Some(new ChunkFailure.Cancelled(s"$what: the network was closed")))

  def late(): Unit =
    finish(Some(new ChunkFailure.Deadline(s"$what: $received bytes of ${chunk.length} came before its deadline")))

  def peerLost(cause: Throwable): Unit = finish(Some(new ChunkFailure.PeerLost(s"$what: $cause", cause)))

  /** Bytes that have not come. */
  def missing: Int = chunk.length - received

  override def onData(id: String, bytes: ByteBuffer): Unit = if (isMine(id)) {
    val count = bytes.remaining
    if (count > missing) finish(Some(new ChunkFailure.NotServed(s"$what has more than ${chunk.length} bytes")))
    else {
      received += count
      if (readAhead > 0) readAhead -= count // they are where they belong
      else toTarget(_.write(bytes))
      reads.foreach(_.begin(this))
    }
  }

  /** Reads bytes, which are those of this chunk, from the connection; [[onData]] is told of them afterwards. */
  def read(from: ScatteringByteChannel, atMost: Int): Int = {
    val result = toTarget { target =>
      try Right(target.asInstanceOf[DirectChunkTarget].read(from, atMost))
      catch { case e: IOException => Left(e) } // the connection's
    }
    val count = result.fold(DirectReads.drop(from, atMost))(_.fold(throw _, identity))
    readAhead = math.max(0, count)
    count
  }

  /** Lets the target have bytes, unless this is over; None if it did not take them. */
  private def toTarget[T](take: ChunkTarget => T): Option[T] = {
    val taken = synchronized {
      try Right(if (target == null) None else Some(take(target)))
      catch { case NonFatal(e) => Left(new ChunkFailure.TargetFailed(s"$what: its target failed: $e", e)) }
    }
    taken.left.foreach(failure => finish(Some(failure)))
    taken.toOption.flatten
  }

  override def onComplete(id: String): Unit = if (isMine(id)) {
    reads.foreach(_.end())
    finish(
      if (received == chunk.length) None
      else Some(new ChunkFailure.NotServed(s"$what has $received bytes, expected ${chunk.length}"))
    )
  }

  /** Spark takes answers to be in the order of the requests. If they are not, no answer of this connection is what it seems. */
  private def isMine(id: String): Boolean = {
    val mine = id == request
    if (!mine) broken(new IOException(s"the answer to $id came instead"))
    mine
  }

  /** Spark makes a plain RuntimeException of what the peer answers; anything else is the end of the connection. */
  override def onFailure(id: String, cause: Throwable): Unit =
    if (cause.getClass == classOf[RuntimeException])
      finish(Some(new ChunkFailure.NotServed(s"$what: ${cause.getMessage.linesIterator.next()}", cause)))
    else broken(cause)

  /** Spark may still take requests for a connection that it is about to close, and forgets them then. */
  private def broken(cause: Throwable): Unit = {
    reads.foreach(_.end())
    connection.ended(cause)
    peerLost(cause)
  }

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
      catch { case NonFatal(e) => log.error(s"$what: the caller's callback failed", e) }
    }
  }

  private def what: String = s"chunk $request of ${from.host}:${from.port}"
}

private object PendingFetch {
  private val log = LoggerFactory.getLogger(classOf[PendingFetch])
}
