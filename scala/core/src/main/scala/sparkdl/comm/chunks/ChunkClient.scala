package sparkdl.comm.chunks

import java.nio.ByteBuffer
import java.util.concurrent.{ConcurrentHashMap, LinkedBlockingQueue, ThreadPoolExecutor, TimeUnit}

import scala.jdk.CollectionConverters._

import io.netty.handler.timeout.WriteTimeoutHandler
import org.slf4j.LoggerFactory

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
 * Fetches chunks from [[ChunkServer]]s and sends them messages, over one connection to each, which is made when it is first
 * needed and again when it is needed after it broke. A peer that owes an answer and is quiet for as long as `conf` allows
 * loses its connection. Of a peer that went without a word, a dead connection stays until something is sent over it: the
 * executor that starts at its address afterwards is another peer, with another connection.
 *
 * @param here where this executor serves
 * @param bootstraps authenticate this executor
 * @param lost told when a connection ended that nobody here closed, or could not be made
 */
private[comm] final class ChunkClient(
    conf: TransportConf,
    here: ChunkPeer,
    bootstraps: Seq[TransportClientBootstrap],
    clock: Clock,
    lost: ChunkPeer => Unit
) extends Chunks
    with PeerMessages {
  import ChunkClient._

  private val context = new TransportContext(conf, new AnswerHandler, false, true)
  private val directReads: TransportClientBootstrap = (_, channel) => DirectReads.install(channel)
  private val factory = context.createClientFactory((directReads +: bootstraps).asJava)
  private val connections = new ConcurrentHashMap[ChunkPeer, Connection]
  private val deadlines = new Deadlines(clock)
  @volatile private var closed = false

  /** What a server says beside its chunks. */
  private final class AnswerHandler extends NoOpRpcHandler {
    override def receive(client: TransportClient, message: ByteBuffer): Unit = {
      val channel = client.getChannel
      def refuse(what: String): Unit = {
        log.warn(s"The connection to ${channel.remoteAddress} is closed: it sent $what")
        channel.close()
      }
      try
        Wire.decode(message) match {
          case Wire.Received(total, time) if Connection.of(channel).exists(_.confirm(total, time)) => ()
          case other => refuse(s"$other where the number of parts that have come was expected")
        }
      catch { case e: Wire.ProtocolException => refuse(e.getMessage) }
    }
  }

  /** Spark's library makes connections on the caller's thread, and fetches do not wait. */
  private val connectors = {
    val queue = new LinkedBlockingQueue[Runnable]
    // Dropped, once it is shut down: the fetches that wait for it have been told.
    val late = new ThreadPoolExecutor.DiscardPolicy
    val pool = new ThreadPoolExecutor(Connectors, Connectors, 1, TimeUnit.SECONDS, queue, thread(_), late)
    pool.allowCoreThreadTimeOut(true)
    pool
  }

  /** Fetches that are not over. */
  def pending: Int = deadlines.count

  override def fetch(from: ChunkPeer, chunk: Chunk, into: ChunkTarget, deadline: Long)(
      done: Option[ChunkFailure] => Unit
  ): ChunkFetch = {
    val fetch = new PendingFetch(from, chunk, into, deadline, deadlines, done)
    if (closed) fetch.closed() else connection(from).ask(fetch)
    fetch
  }

  override def send(to: ChunkPeer, part: MessagePart)(done: Option[Long] => Unit): Unit = {
    val (bytes, most) = (part.message.length, PeerMessages.MaxBytes)
    require(bytes <= most, s"a message of $bytes bytes, where $most is the most")
    if (closed) done(None) else connection(to).send(part, done)
  }

  private def connection(to: ChunkPeer): Connection = {
    val known = connections.get(to)
    if (known != null) known else connect(to)
  }

  private def connect(to: ChunkPeer): Connection = {
    val fresh = new Connection(clock, ended(to, _))
    val known = connections.putIfAbsent(to, fresh)
    if (known != null) known
    else {
      try connectors.execute(() => open(to, fresh))
      catch { case e: Throwable => fresh.ended(e) } // no memory for another thread
      fresh
    }
  }

  private def open(to: ChunkPeer, connection: Connection): Unit =
    try {
      val client = factory.createUnmanagedClient(to.host, to.port)
      val writeTimeout = new WriteTimeoutHandler(conf.connectionTimeoutMs.toLong, TimeUnit.MILLISECONDS)
      client.getChannel.pipeline.addFirst(writeTimeout)
      client.send(Wire.hello(here))
      connection.opened(client)
      if (closed) connection.close()
    } catch { case e: Throwable => connection.ended(e) } // or whoever waits for it would not learn of it

  private def ended(to: ChunkPeer, connection: Connection): Unit = {
    connections.remove(to, connection)
    if (!closed) lost(to)
  }

  /** The threads end some seconds later. */
  def close(): Unit = {
    closed = true
    deadlines.foreach(_.closed())
    connectors.shutdownNow()
    connections.values.asScala.foreach(_.close())
    factory.close()
    context.close()
  }
}

private object ChunkClient {
  private val log = LoggerFactory.getLogger(classOf[ChunkClient])

  /** So many peers that do not answer hold up connections to others. */
  private val Connectors = 4

  private def thread(task: Runnable): Thread = {
    val thread = new Thread(task, "sparkdl-connect")
    thread.setDaemon(true)
    thread
  }
}
