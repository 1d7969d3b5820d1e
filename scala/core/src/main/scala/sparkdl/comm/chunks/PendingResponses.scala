// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.io.IOException
import java.nio.ByteBuffer

import scala.collection.mutable

import org.apache.spark.network.client.{StreamCallback, TransportClient}

import sparkdl.comm.{Callbacks, Clock}

/**
 * Receiver of the chunks that were asked for over one connection. Each chunk has a number, so that
 * parts of several chunks may arrive in any order. Spark's TransportClient matches responses to
 * requests in order. So this object is registered once for each chunk that still expects a part.
 * All calls come from the connection's event loop.
 *
 * @param onProtocolError called after a protocol error: no answer of this connection can be trusted
 */
private[chunks] final class PendingResponses(
    client: TransportClient,
    clock: Clock,
    onProtocolError: Throwable => Unit
) extends StreamCallback {
  private val reads = DirectReadAllocator.installedOn(client.getChannel)
  private val confirmations = new ConfirmationSender(client.getChannel, clock)
  private val pending = mutable.Map.empty[Long, PendingFetch]
  private var requestCount = 0L
  private var current = Option.empty[PendingFetch]
  private var endCause = Option.empty[Throwable]

  def ask(fetch: PendingFetch): Unit =
    if (endCause.isDefined) fetch.peerLost(endCause.get)
    else {
      requestCount += 1
      pending(requestCount) = fetch
      expectAnother()
      FrameWriter.write(client.getChannel, Wire.ask(requestCount, fetch.chunk))
    }

  private def expectAnother(): Unit = client.getHandler.addStreamCallback("", this)

  override def onData(id: String, bytes: ByteBuffer): Unit = {
    if (current.isEmpty) begin(id)
    current.foreach { fetch =>
      fetch.write(bytes)
      reads.filter(_ => fetch.isDirect).foreach(_.begin(fetch))
    }
  }

  private def begin(id: String): Unit = {
    current = Wire.part(id).flatMap { case (number, length) =>
      pending.get(number).filter(_.beginPart(length))
    }
    if (current.isEmpty) onProtocolError(new IOException(s"unexpected part $id of a chunk arrived"))
  }

  override def onComplete(id: String): Unit = current.foreach { fetch =>
    current = None
    reads.foreach(_.end())
    if (fetch.isComplete) {
      Wire.part(id).foreach { case (number, _) => pending -= number }
      fetch.complete()
    } else expectAnother()
    confirmations.recordArrivals(1)
  }

  /**
   * Handle a failure. Spark reports a peer's refusal of one chunk as a plain RuntimeException.
   * Then only that fetch fails. After any other failure, close the connection and fail all its
   * fetches.
   */
  override def onFailure(id: String, cause: Throwable): Unit = {
    val refused = if (cause.getClass == classOf[RuntimeException]) Wire.part(id) else None
    refused.flatMap { case (number, _) => pending.remove(number) } match {
      case Some(fetch) =>
        fetch.notServed(cause)
        confirmations.recordArrivals(1)
      case None => onProtocolError(cause)
    }
  }

  /** End all fetches: the connection is gone. */
  def endAll(cause: Throwable): Unit = {
    endCause = Some(cause)
    reads.foreach(_.end())
    val left = pending.values.toVector
    pending.clear()
    Callbacks.callAll(left)(_.peerLost(cause))
  }
}
