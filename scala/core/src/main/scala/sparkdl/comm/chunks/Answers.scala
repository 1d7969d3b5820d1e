package sparkdl.comm.chunks

import java.io.IOException
import java.nio.ByteBuffer

import scala.collection.mutable

import org.apache.spark.network.client.{StreamCallback, TransportClient}

import sparkdl.comm.Clock

/**
 * Receiver of the chunks that were asked for over one connection. Each chunk has a number, so that parts of several
 * chunks may arrive in any order. Spark's TransportClient matches responses to requests in order. So this object is
 * registered once for each chunk that still expects a part. All calls come from the connection's event loop.
 *
 * @param broken called after a protocol error: no answer of this connection can be trusted
 */
private[chunks] final class Answers(client: TransportClient, clock: Clock, broken: Throwable => Unit)
    extends StreamCallback {
  private val reads = DirectReads.on(client.getChannel)
  private val confirmations = new Confirmations(client.getChannel, clock)
  private val pending = mutable.Map.empty[Long, PendingFetch]
  private var asked = 0L
  private var coming = Option.empty[PendingFetch]
  private var end = Option.empty[Throwable]

  def ask(fetch: PendingFetch): Unit =
    if (end.isDefined) fetch.peerLost(end.get)
    else {
      asked += 1
      pending(asked) = fetch
      expectAnother()
      Frame.write(client.getChannel, Wire.ask(asked, fetch.chunk))
    }

  private def expectAnother(): Unit = client.getHandler.addStreamCallback("", this)

  override def onData(id: String, bytes: ByteBuffer): Unit = {
    if (coming.isEmpty) begin(id)
    coming.foreach { fetch =>
      fetch.write(bytes)
      reads.filter(_ => fetch.isDirect).foreach(_.begin(fetch))
    }
  }

  private def begin(id: String): Unit = {
    coming = Wire.part(id).flatMap { case (number, length) => pending.get(number).filter(_.begin(length)) }
    if (coming.isEmpty) broken(new IOException(s"unexpected part $id of a chunk arrived"))
  }

  override def onComplete(id: String): Unit = coming.foreach { fetch =>
    coming = None
    reads.foreach(_.end())
    if (fetch.isHere) {
      Wire.part(id).foreach { case (number, _) => pending -= number }
      fetch.complete()
    } else expectAnother()
    confirmations.came(1)
  }

  /**
   * Handle a failure. Spark reports a peer's refusal as a plain RuntimeException. Any other exception ends the
   * connection.
   */
  override def onFailure(id: String, cause: Throwable): Unit = {
    val refused = if (cause.getClass == classOf[RuntimeException]) Wire.part(id) else None
    refused.flatMap { case (number, _) => pending.remove(number) } match {
      case Some(fetch) =>
        fetch.notServed(cause)
        confirmations.came(1)
      case None => broken(cause)
    }
  }

  /** End all fetches: the connection is gone. */
  def ended(cause: Throwable): Unit = {
    end = Some(cause)
    reads.foreach(_.end())
    val left = pending.values.toVector
    pending.clear()
    left.foreach(_.peerLost(cause))
  }
}
