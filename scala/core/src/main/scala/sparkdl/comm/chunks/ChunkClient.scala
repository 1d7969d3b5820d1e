// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.nio.ByteBuffer
import java.util.concurrent.{
  CompletableFuture,
  ConcurrentHashMap,
  LinkedBlockingQueue,
  ThreadPoolExecutor,
  TimeUnit
}

import scala.jdk.CollectionConverters._

import io.netty.handler.timeout.WriteTimeoutHandler

import org.apache.spark.internal.Logging
import org.apache.spark.network.TransportContext
import org.apache.spark.network.client.{TransportClient, TransportClientBootstrap}
import org.apache.spark.network.server.NoOpRpcHandler
import org.apache.spark.network.util.TransportConf

import sparkdl.comm.Clock
import sparkdl.comm.transport.{
  Chunk,
  ChunkFailure,
  ChunkFetch,
  ChunkPeer,
  ChunkTarget,
  Chunks,
  MessagePart,
  PeerMessages
}

/**
 * Client of [[ChunkServer]]s: fetches chunks and sends messages over one connection to each peer. A
 * connection is made on first use, and made again when it is needed after it broke. A peer that
 * owes an answer and is quiet for longer than `conf` allows loses its connection. If a peer
 * vanished silently, its dead connection stays until something is sent over it, such as a
 * [[probe]]. An executor that later starts at that address is another peer, with its own
 * connection.
 *
 * @param ownAddress address where this executor serves
 * @param bootstraps authenticate this executor
 * @param onLost called when a connection could not be made, or ended without being closed here
 */
private[comm] final class ChunkClient(
    conf: TransportConf,
    ownAddress: ChunkPeer,
    bootstraps: Seq[TransportClientBootstrap],
    clock: Clock,
    onLost: ChunkPeer => Unit
) extends Chunks
    with PeerMessages
    with Logging {
  import ChunkClient._

  private val context = new TransportContext(conf, new AnswerHandler, false, true)
  private val directReads: TransportClientBootstrap =
    (_, channel) => DirectReadAllocator.install(channel)
  private val factory = context.createClientFactory((directReads +: bootstraps).asJava)
  private val connections = new ConcurrentHashMap[ChunkPeer, Connection]
  private val deadlines = new DeadlineTimer(clock)
  @volatile private var closed = false

  /** Handler of a server's messages other than chunks. */
  private final class AnswerHandler extends NoOpRpcHandler {
    override def receive(client: TransportClient, message: ByteBuffer): Unit = {
      val channel = client.getChannel
      def refuse(what: String): Unit = {
        logWarning(s"The connection to ${channel.remoteAddress} is closed: it sent $what")
        channel.close()
      }
      try
        Wire.decode(message) match {
          case Wire.Received(total, time)
              if Connection.of(channel).exists(_.confirm(total, time)) => ()
          case other => refuse(s"$other instead of a confirmation of parts")
        }
      catch {
        case e: Wire.ProtocolException => refuse(e.getMessage)
        case e: Throwable =>
          val from = channel.remoteAddress
          logError(s"The connection to $from is closed: its message could not be handled", e)
          channel.close()
      }
    }
  }

  /**
   * Threads that open connections. Spark's library blocks the calling thread, and fetches must not
   * wait.
   */
  private val connectors = {
    val queue = new LinkedBlockingQueue[Runnable]
    // Tasks after the shutdown are dropped: their fetches have ended.
    val discardLate = new ThreadPoolExecutor.DiscardPolicy
    val pool =
      new ThreadPoolExecutor(
        ConnectorThreads,
        ConnectorThreads,
        1,
        TimeUnit.SECONDS,
        queue,
        newThread(_),
        discardLate
      )
    pool.allowCoreThreadTimeOut(true)
    pool
  }

  /** Fetches in progress. */
  def pending: Int = deadlines.count

  override def fetch(from: ChunkPeer, chunk: Chunk, into: ChunkTarget, deadline: Long)(
      done: Option[ChunkFailure] => Unit
  ): ChunkFetch = {
    val fetch = new PendingFetch(from, chunk, into, deadline, deadlines, done)
    if (closed) fetch.cancelOnClose() else connection(from).ask(fetch)
    fetch
  }

  override def send(to: ChunkPeer, part: MessagePart)(done: Option[Long] => Unit): Unit = {
    val (bytes, most) = (part.message.length, PeerMessages.MaxBytes)
    require(bytes <= most, s"the message has $bytes bytes, but at most $most are allowed")
    if (closed) done(None) else connection(to).send(part, done)
  }

  /** Probe connections: see [[sparkdl.comm.transport.ChunkNetwork]]. */
  def probe(peers: Iterable[ChunkPeer]): CompletableFuture[Void] = {
    val patience = TimeUnit.MILLISECONDS.toNanos(conf.connectionTimeoutMs.toLong)
    val known = peers.toSeq.distinct.flatMap(peer => Option(connections.get(peer)))
    CompletableFuture.allOf(known.map(_.probe(patience)): _*)
  }

  private def connection(to: ChunkPeer): Connection = {
    val known = connections.get(to)
    if (known != null) known else connect(to)
  }

  private def connect(to: ChunkPeer): Connection = {
    val fresh = new Connection(clock, onEnded(to, _))
    val known = connections.putIfAbsent(to, fresh)
    if (known != null) known
    else {
      try connectors.execute(() => open(to, fresh))
      catch { case e: Throwable => fresh.end(e) } // for example, no memory for a thread
      fresh
    }
  }

  private def open(to: ChunkPeer, connection: Connection): Unit =
    try {
      val client = factory.createUnmanagedClient(to.host, to.port)
      val writeTimeout =
        new WriteTimeoutHandler(conf.connectionTimeoutMs.toLong, TimeUnit.MILLISECONDS)
      client.getChannel.pipeline.addFirst(writeTimeout)
      client.send(Wire.hello(ownAddress))
      connection.onOpened(client)
      if (closed) connection.close()
    } catch { case e: Throwable => connection.end(e) } // so that waiting fetches fail too

  private def onEnded(to: ChunkPeer, connection: Connection): Unit = {
    connections.remove(to, connection)
    if (!closed) onLost(to)
  }

  /** Close all connections. The threads end some seconds later. */
  def close(): Unit = {
    closed = true
    deadlines.foreach(_.cancelOnClose())
    connectors.shutdownNow()
    connections.values.asScala.foreach(_.close())
    factory.close()
    context.close()
  }
}

private object ChunkClient {

  /**
   * Threads that open connections. So many peers that do not answer delay connections to others.
   */
  private val ConnectorThreads = 4

  private def newThread(task: Runnable): Thread = {
    val thread = new Thread(task, "sparkdl-connect")
    thread.setDaemon(true)
    thread
  }
}
