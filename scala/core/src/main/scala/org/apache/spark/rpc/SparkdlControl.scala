package org.apache.spark.rpc

import org.apache.spark.{SecurityManager, SparkConf, SparkContext, SparkEnv}

import sparkdl.comm.transport.{ControlPeer, ControlPlane, ControlReceiver}

/** Messages between executors by Spark's RPC. It has an RpcEnv of its own, as an executor's cannot be called. */
private[spark] final class SparkdlControl private (rpc: RpcEnv, receiver: ControlReceiver) extends ControlPlane {
  import SparkdlControl._

  rpc.setupEndpoint(
    Name,
    new ThreadSafeRpcEndpoint {
      override val rpcEnv: RpcEnv = rpc
      override def receive: PartialFunction[Any, Unit] = { case message => receiver.received(message) }
      override def onDisconnected(address: RpcAddress): Unit = receiver.disconnected(address.host, address.port)
    }
  )

  override def port: Int = rpc.address.port

  override def connect(host: String, port: Int): ControlPeer = {
    val endpoint = rpc.setupEndpointRef(RpcAddress(host, port), Name)
    message => endpoint.send(message)
  }

  override def close(): Unit = rpc.shutdown()
}

private[spark] object SparkdlControl {
  private val Name = "sparkdl-comm"
  private val ConnectSeconds = 10

  /** As [[sparkdl.comm.transport.Transport.openControl]]. */
  def open(
      env: SparkEnv,
      conf: SparkConf,
      host: String,
      firstPort: Int,
      portCount: Int,
      receiver: ControlReceiver
  ): ControlPlane = {
    val rpcConf = conf.clone.set("spark.port.maxRetries", (portCount - 1).toString)
    // A peer that is gone must not hold a gang up for Spark's two minutes.
    Seq("spark.rpc.lookupTimeout", "spark.rpc.askTimeout", "spark.rpc.io.connectionCreationTimeout")
      .foreach(rpcConf.set(_, s"${ConnectSeconds}s"))
    val isDriver = env.executorId == SparkContext.DRIVER_IDENTIFIER
    val bindAddress = if (isDriver) conf.get("spark.driver.bindAddress", host) else host
    val rpc = RpcEnv.create(
      Name,
      bindAddress,
      host,
      firstPort,
      rpcConf,
      env.securityManager: SecurityManager,
      numUsableCores = 1,
      clientMode = false
    )
    new SparkdlControl(rpc, receiver)
  }
}
