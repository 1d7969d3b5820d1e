// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.nio.ByteBuffer
import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.AtomicInteger

import scala.jdk.CollectionConverters._

import io.netty.channel.Channel
import io.netty.handler.timeout.WriteTimeoutHandler

import org.apache.spark.internal.Logging
import org.apache.spark.network.TransportContext
import org.apache.spark.network.buffer.ManagedBuffer
import org.apache.spark.network.client.{RpcResponseCallback, TransportClient}
import org.apache.spark.network.server.{
  NoOpRpcHandler,
  RpcHandler,
  StreamManager,
  TransportServerBootstrap
}
import org.apache.spark.network.util.TransportConf

import sparkdl.comm.Clock
import sparkdl.comm.transport.{ChunkPeer, PeerMessageReceiver}

/**
 * Server of chunks, and receiver of messages. A peer that takes no data for longer than `conf` lets
 * connections be quiet loses its connection. Then the data for it is released.
 *
 * @param port 0: any
 * @param bootstraps authenticate peers. Until they have admitted a peer, none of its messages is
 *    read and no chunk is looked up
 * @throws java.net.BindException if the port is not free
 */
private[comm] final class ChunkServer(
    conf: TransportConf,
    bindAddress: String,
    port: Int,
    bootstraps: Seq[TransportServerBootstrap],
    source: ChunkSource,
    receiver: PeerMessageReceiver,
    clock: Clock
) extends Logging {
  private val sendingCount = new AtomicInteger
  private val context = new TransportContext(conf, new NoOpRpcHandler)

  // The first bootstrap is the innermost: Spark's authentication passes an authenticated peer's
  // messages to it.
  private val perConnection: TransportServerBootstrap = (channel, _) => new PeerHandler(channel)
  private val server = context.createServer(bindAddress, port, (perConnection +: bootstraps).asJava)

  def boundPort: Int = server.getPort

  /** Parts of chunks that are being sent. */
  def sending: Int = sendingCount.get

  /** Peers that are connected. */
  def connections: Long = context.getRegisteredConnections.getCount

  /** Close the server and its connections. The threads end some seconds later. */
  def close(): Unit = {
    server.close()
    context.close()
  }

  /** Handler of one connection. All calls come from its event loop. */
  private final class PeerHandler(channel: Channel) extends RpcHandler {
    private var peer = Option.empty[ChunkPeer]
    private val messages = new PartialMessages
    private val confirmations = new ConfirmationSender(channel, clock)
    private val unconfirmed = new UnconfirmedSends // answers
    channel.pipeline.addFirst(new WriteTimeoutHandler(
      conf.connectionTimeoutMs.toLong,
      TimeUnit.MILLISECONDS
    ))
    channel.closeFuture.addListener((_: io.netty.util.concurrent.Future[Void]) => unconfirmed.end())

    override def receive(client: TransportClient, message: ByteBuffer): Unit =
      try
        Wire.decode(message) match {
          case Wire.Hello(Wire.Version, from) => peer = Some(from)
          case Wire.Batch(parts) if peer.isDefined =>
            confirmations.recordArrivals(parts.size)
            parts.flatMap(messages.add(_)).foreach(receiver.onMessage)
          case Wire.Ask(number, chunk) if peer.isDefined =>
            receiver.onRequest(new RequestedChunk(
              number,
              chunk,
              peer.get,
              source,
              channel,
              unconfirmed,
              sendingCount
            ))
          case Wire.Received(total, time) if peer.isDefined && unconfirmed.confirm(total, time) =>
            ()
          case other =>
            refuse(
              s"$other instead of a hello of version ${Wire.Version}, or a message that may" +
                " follow one"
            )
        }
      catch {
        case e: Wire.ProtocolException => refuse(e.getMessage)
        case e: Throwable =>
          // The peer would wait in vain. Spark only logs an exception.
          val from = channel.remoteAddress
          logError(s"A connection of $from is closed: its message could not be handled", e)
          channel.close()
      }

    override def receive(
        client: TransportClient,
        message: ByteBuffer,
        callback: RpcResponseCallback
    ): Unit =
      refuse("an RPC of Spark's")

    override val getStreamManager: StreamManager = new StreamManager {
      override def openStream(id: String): ManagedBuffer = {
        refuse("a stream request of Spark's")
        null
      }
      override def getChunk(stream: Long, index: Int): ManagedBuffer = {
        refuse("a chunk of Spark's")
        throw new UnsupportedOperationException
      }
    }

    private def refuse(what: String): Unit = {
      peer = None // later messages may have arrived already
      logWarning(s"A connection of ${channel.remoteAddress} is closed: it sent $what")
      channel.close()
    }
  }
}
